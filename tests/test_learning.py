"""Learning is real: the README's command, unshortened, and what each stage must have added."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from support import nemotron

LEAST_GAIN = 0.15


@pytest.mark.slow
def test_each_stage_adds_what_the_readme_says(run, tmp_path: Path) -> None:
    run(*nemotron("super3", "pipeline", "-c", "tiny"))
    file = tmp_path / "home" / "artifacts" / "super3-eval-results" / "v1" / "results.json"
    results = json.loads(file.read_text())
    assert results["tasks"]["sums"]["n_unique"] >= 200
    scores = {entry["model"]: entry for entry in results["scores"] if entry["task"] == "sums"}
    for before, after in pairwise(("base", "sft", "rl")):
        assert scores[after]["value"] - scores[before]["value"] >= LEAST_GAIN
        assert scores[after]["ci95"][0] > scores[before]["ci95"][1]
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
