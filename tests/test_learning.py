"""Learning is real: the README's command, unshortened, and what each stage must have added."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from support import nemotron

MOST_OF_BASE, SFT, LEAST_OF_RL = 0.05, (0.35, 0.8), 0.9
LEAST_OF_DPO, LEAST_OF_DISTILLATION, LEAST_OF_SCORES = 0.8, 0.8, 0.7


@pytest.mark.slow
def test_each_stage_adds_what_the_readme_says(run, tmp_path: Path) -> None:
    run(*nemotron("super3", "pipeline", "-c", "tiny"))  # in new processes: tests/test_pipeline.py
    artifact = tmp_path / "home" / "artifacts" / "super3-eval-results" / "v1"
    results = json.loads((artifact / "results.json").read_text())
    assert results["tasks"]["sums"]["n_unique"] >= 200
    scores = {entry["model"]: entry for entry in results["scores"] if entry["task"] == "sums"}
    base, sft, rl = (scores[model]["value"] for model in ("base", "sft", "rl"))
    assert base <= MOST_OF_BASE
    assert SFT[0] <= sft <= SFT[1]
    assert rl >= LEAST_OF_RL
    for before, after in pairwise(("base", "sft", "rl")):
        assert scores[after]["ci95"][0] > scores[before]["ci95"][1]
    right = {model: right_whatever_the_form(artifact / "samples" / model / "sums.jsonl") for model in ("sft", "rl")}
    assert right["rl"] - right["sft"] >= (rl - sft) / 2, "RL teaches sums, and not a form alone"
    overlap = results["overlap"]
    assert {name: found["found"] for name, found in overlap.items()} == {"sums": 0, "facts": 0, "prose": 0}
    assert overlap["prose"]["sentences"]["found"] == 0
    assert overlap["facts"]["stated"] == overlap["facts"]["of"], "recall asks for what pretraining states"
    prose = {entry["model"]: entry["value"] for entry in results["scores"] if entry["task"] == "prose"}
    assert prose["base"] < prose["random"] / 2
    facts = {entry["model"]: entry["value"] for entry in results["scores"] if entry["task"] == "facts"}
    assert facts["base"] > facts["random"] + 0.3
    for stage in ("pretrain", "sft", "rl", "eval"):
        checked = run(*nemotron("check", stage, "--json"))
        assert json.loads(checked.stdout)["verdict"] in {"pass", "watch"}, checked.stdout

    # DPO, from the same model as RL
    run(*nemotron("super3", "rl", "-c", "dpo_tiny"))
    model = json.loads((tmp_path / "home/artifacts/super3-rl-model/v2/manifest.json").read_text())
    assert model["metrics"]["valid_pair_accuracy"] > 0.9
    run(*nemotron("super3", "eval", "-c", "tiny"))
    results = json.loads((artifact.parent / "v2" / "results.json").read_text())
    (pairs,) = (one for one in results["scores"] if one["task"] == "sums" and one["model"] == "rl")
    assert pairs["ci95"][0] > scores["sft"]["ci95"][1] and pairs["value"] >= LEAST_OF_DPO

    # a reward model, from the same model as RL, and RL by its scores alone
    run(*nemotron("super3", "rl", "-c", "reward_tiny"))
    scorer = json.loads((tmp_path / "home/artifacts/super3-reward-model/v1/manifest.json").read_text())
    assert scorer["metrics"]["valid_pair_accuracy"] > 0.9
    assert json.loads(run(*nemotron("check", "super3-reward-model", "--json")).stdout)["verdict"] == "pass"
    by_scores = ("run.reward_model=super3-reward-model:latest", "rewards=[{name: model, weight: 1.0}]")
    run(*nemotron("super3", "rl", "-c", "tiny", *by_scores, "grpo.use_leave_one_out_baseline=false"))
    run(*nemotron("super3", "eval", "-c", "tiny"))
    results = json.loads((artifact.parent / "v3" / "results.json").read_text())
    (scored,) = (one for one in results["scores"] if one["task"] == "sums" and one["model"] == "rl")
    assert scored["ci95"][0] > scores["sft"]["ci95"][1] and scored["value"] >= LEAST_OF_SCORES

    # distillation, from the same model as RL, of what RL made
    run(*nemotron("super3", "rl", "-c", "distill_tiny"))
    run(*nemotron("super3", "eval", "-c", "tiny"))
    results = json.loads((artifact.parent / "v4" / "results.json").read_text())
    (taught,) = (one for one in results["scores"] if one["task"] == "sums" and one["model"] == "rl")
    assert taught["ci95"][0] > scores["sft"]["ci95"][1] and taught["value"] >= LEAST_OF_DISTILLATION


@pytest.mark.slow
def test_rl_learns_to_look_things_up_in_an_environment(run, tmp_path: Path) -> None:
    run(*nemotron("super3", "pipeline", "-c", "drawers_text"))
    results = json.loads((tmp_path / "home/artifacts/super3-eval-results/v1/results.json").read_text())
    scores = {entry["model"]: entry for entry in results["scores"]}
    base, sft, rl = (scores[model] for model in ("base", "sft", "rl"))
    assert base["value"] <= MOST_OF_BASE
    assert SFT[0] <= sft["value"] <= SFT[1]
    assert rl["value"] >= LEAST_OF_RL
    assert rl["ci95"][0] > sft["ci95"][1]
    assert rl["figures"]["used_tools"] > sft["figures"]["used_tools"]
    assert results["overlap"]["drawers_text"]["found"] == 0


def right_whatever_the_form(samples: Path) -> float:
    """The share of answers that the lenient verdict calls right."""
    verdicts = [json.loads(line)["lenient"] for line in samples.read_text().splitlines()]
    return sum(verdicts) / len(verdicts)
