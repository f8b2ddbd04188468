"""The whole pipeline, short: what it makes, what a rerun reuses, what a change redoes."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from support import SHORT, nemotron

from nemotron_app.help import PIPELINE, STAGES
from nemotron_app.launch import consenting
from nemotron_app.pipeline import for_stage, require_configs
from nemotron_app.request import Request
from nemotron_shared.families import architecture, families
from nemotron_shared.system.errors import UserError

SHORT_PIPELINE = [f"{stage}.{override}" for stage, overrides in SHORT.items() for override in overrides]
ARTIFACTS = {
    "super3-pretrain-data", "super3-pretrain-model", "super3-sft-data", "super3-sft-model",
    "super3-rl-data", "super3-rl-model", "super3-eval-data", "super3-eval-results",
}  # fmt: skip


def versions(home: Path) -> dict[str, int]:
    return {folder.name: len(list(folder.glob("v*"))) for folder in (home / "artifacts").iterdir()}


def test_the_pipeline_end_to_end(run, tmp_path: Path) -> None:
    home = tmp_path / "home"
    pipeline = nemotron("super3", "pipeline", "-c", "tiny", *SHORT_PIPELINE)

    first = run(*pipeline)
    assert versions(home) == dict.fromkeys(ARTIFACTS, 1)
    assert [f"{number}/7" in first.stderr for number in range(1, 8)] == [True] * 7
    told = first.stderr.partition("7/7")[2].count("mamba: ")
    assert told == torch.cuda.is_available(), "once, also where half of the models are asked in a copy"
    for later, earlier in (("sft", "pretrain"), ("rl", "sft")):
        manifest = json.loads((home / "artifacts" / f"super3-{later}-model" / "v1" / "manifest.json").read_text())
        parents = {parent["role"]: parent["reference"] for parent in manifest["parents"]}
        assert parents["model"] == f"super3-{earlier}-model:v1"
    page = (home / "reports" / "super3.html").read_text()
    results = json.loads((home / "artifacts" / "super3-eval-results" / "v1" / "results.json").read_text())
    assert [entry["model"] for entry in results["scores"]][:4] == ["random", "base", "sft", "rl"]
    assert [results["overlap"][name]["found"] for name in ("sums", "facts", "prose")] == [0, 0, 0]
    assert len(results["overlap"]["sums"]["checked_against"]) == 3
    assert "super3-rl-model:v1" in page
    assert "src=" not in page

    again = run(*pipeline)
    assert again.stderr.count("unchanged: using") == 8
    assert versions(home) == dict.fromkeys(ARTIFACTS, 1)


def asked(*overrides: str) -> Request:
    return Request("super3", ("pipeline",), "tiny", (*overrides, "run.family=super3"), False, False)


@pytest.mark.parametrize(
    ("command", "config", "set_"),
    [
        (("sft",), None, ["engine.allow_experimental=true"]),
        (("rl",), "super49b", ["engine.allow_experimental=true"]),
        (("rl",), "tiny", []),
        (("data", "prep", "sft"), "tiny", []),
        (("pipeline",), "tiny", []),
        (("pipeline",), "super49b", ["sft.engine.allow_experimental=true", "rl.engine.allow_experimental=true"]),
    ],
)
def test_allow_experimental_is_the_consent_that_an_engine_asks_for(
    command: tuple[str, ...], config: str | None, set_: list[str]
) -> None:
    own = "run.family=super49b"
    for words in ((own,), (own, "run.env.nodes=8")):
        request = Request("super49b", command, config, words, False, False)
        assert list(consenting(request).overrides) == [*set_, *words]


@pytest.mark.parametrize(
    ("override", "stages"),
    [
        ("train.train_iters=3", ["pretrain", "sft", "rl"]),
        ("++optimizer.lr=1e-3", ["pretrain", "sft", "rl"]),
        ("~checkpoint.save_interval", ["pretrain", "sft", "rl"]),
        ("data_prep.split={train: 0.5, valid: 0.25, test: 0.25}", ["pretrain", "sft", "rl", "eval"]),
        ("grpo.max_new_tokens=8", ["rl"]),
        ("run.base=sft", ["eval"]),
        ("run.seed=7", ["pretrain", "sft", "rl", "eval"]),
        ("run.env.nodes=2", ["pretrain", "sft", "rl", "eval"]),
        ("+model.overrides.hidden_size=96", ["pretrain", "sft", "rl", "eval"]),
        ("+grpo.other=1", ["pretrain", "sft", "rl", "eval"]),
        ("eval.evaluation.limit=5", ["eval"]),
    ],
)
def test_an_override_without_a_stage_is_for_every_stage_that_has_the_setting(override: str, stages: list[str]) -> None:
    request = asked(override)
    assert [stage for stage in STAGES if len(for_stage(request, stage).overrides) == 2] == stages


def test_what_one_stage_s_engine_has_alone_is_for_that_stage() -> None:
    request = asked("rl.engine=nemo_rl", "policy.dtensor_cfg.cpu_offload=true")
    assert for_stage(request, "sft").overrides == ("run.family=super3",)
    assert for_stage(request, "rl").overrides == (*request.overrides[1:], "engine=nemo_rl")


def test_a_setting_that_not_all_stages_have_stops_none_of_them() -> None:
    require_configs(PIPELINE, asked("train.train_iters=3", "grpo.max_new_tokens=8"))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "grpo.max_new_tokenz=8",
            "no stage has a setting 'grpo.max_new_tokenz'\n  did you mean 'grpo.max_new_tokens'?",
        ),
        ("~evaluation.limmit", "no stage has a setting 'evaluation.limmit'\n  did you mean 'evaluation.limit'?"),
        ("peft.dim=8", "'peft.dim' is a key of NeMo Automodel"),
        ("rl.train.train_iterz=3", "rl: command line: unknown key 'train.train_iterz'"),
    ],
)
def test_a_setting_that_no_stage_has_is_refused(override: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        require_configs(PIPELINE, asked(override))
    assert said in str(caught.value)


@pytest.mark.slow
def test_a_pipeline_makes_again_what_a_change_concerns(run, tmp_path: Path) -> None:
    home = tmp_path / "home"
    pipeline = nemotron("super3", "pipeline", "-c", "tiny", *SHORT_PIPELINE)
    run(*pipeline)
    run(*pipeline, "rl.optimizer.lr=1e-3")
    changed = {name for name, count in versions(home).items() if count == 2}
    assert changed == {"super3-rl-model", "super3-eval-results"}

    back = run(*pipeline)
    assert back.stderr.count("unchanged: using") == 8
    assert run(*nemotron("artifacts", "path", "super3-rl-model")).stdout.strip().endswith("super3-rl-model/v1")

    assert run(*nemotron("artifacts", "verify")).returncode == 0
    lineage = run(*nemotron("artifacts", "lineage", "super3-eval-results:v1")).stdout
    assert all(f"{name}:v1" in lineage for name in ARTIFACTS)
    assert "synthetic:documents" in lineage
    mermaid = run(*nemotron("artifacts", "lineage", "super3-eval-results", "--mermaid")).stdout
    assert mermaid.startswith("flowchart") or mermaid.startswith("graph")

    alone = run(*nemotron("super3", "eval", "-c", "tiny", *SHORT["eval"], "run.model=sft:v1", "-t", "sums"))
    assert "asking after SFT" in alone.stderr
    run(*nemotron("super3", "data", "prep", "rl", "-c", "tiny", *SHORT["rl"], "--force"))
    assert versions(home)["super3-rl-data"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("family", [name for name in families() if name not in ("super3", "super49b")])
def test_the_twin_of_every_family_goes_through_the_whole_pipeline(run, tmp_path: Path, family: str) -> None:
    run(*nemotron(family, "pipeline", "-c", "tiny", *SHORT_PIPELINE))
    made = versions(tmp_path / "home")
    assert made == {name.replace("super3", family): 1 for name in ARTIFACTS}
    model = tmp_path / "home" / "artifacts" / f"{family}-rl-model" / "v1"
    config = json.loads((model / "config.json").read_text())
    twin = architecture(f"{family}_tiny")
    assert {key: config[key] for key in ("hidden_size", "moe_latent_size")} == {
        key: twin[key] for key in ("hidden_size", "moe_latent_size")
    }


@pytest.mark.slow
def test_own_questions_and_answers_go_through_the_whole_pipeline(run, tmp_path: Path) -> None:
    rows = [
        {"question": f"Ann has {a} pens and gets {b} more. How many?", "answer": f"{a} + {b} = {a + b}\n#### {a + b}"}
        for a in range(2, 22)
        for b in range(2, 22)
    ]
    lines = [json.dumps(row) for row in rows]
    lines.insert(7, '{"question": "no answer here"}')
    (tmp_path / "problems.jsonl").write_text("\n".join(lines) + "\n")
    run(*nemotron(
        "super3", "pipeline", "-c", "qa", "data_prep.source=problems.jsonl", "data_prep.on_bad_row=reject",
        "pretrain.train.train_iters=12", "sft.train.train_iters=6", "rl.train.train_iters=2",
        "rl.train.eval_interval=2", "rl.grpo.max_new_tokens=8", "rl.grpo.num_prompts_per_step=4",
        "eval.evaluation.max_new_tokens=8",
    ))  # fmt: skip
    artifacts = tmp_path / "home" / "artifacts"
    for stage in ("pretrain", "sft", "rl", "eval"):
        rejected = (artifacts / f"super3-{stage}-data" / "v1" / "rejected.jsonl").read_text().splitlines()
        assert [json.loads(line)["line"] for line in rejected] == [8], stage
    losses = [
        json.loads(line) for line in (artifacts / "super3-pretrain-model/v1/metrics.jsonl").read_text().splitlines()
    ]
    trained = [entry["loss"] for entry in losses if "loss" in entry]
    assert trained[-1] < trained[0] - 0.5
    results = json.loads((artifacts / "super3-eval-results" / "v1" / "results.json").read_text())
    assert results["overlap"]["questions"]["found"] == 0
    assert results["tasks"]["questions"]["n"] >= 8


@pytest.mark.slow
def test_a_failing_step_stops_the_pipeline_and_keeps_what_is_finished(run, tmp_path: Path) -> None:
    result = run(
        *nemotron("super3", "pipeline", "-c", "tiny", *SHORT_PIPELINE, "sft.data_prep.source=none.jsonl"), ok=False
    )
    assert result.returncode == 2
    assert "step 3 of 7 (sft data prep) ended with exit code 2" in result.stderr
    assert versions(tmp_path / "home") == {"super3-pretrain-data": 1, "super3-pretrain-model": 1}


ALONE = [sys.executable, "-m", "nemotron_app.main", "super3"]


def alone(words: list[str], home: Path) -> "subprocess.Popen[str]":
    """A command as a process of its own, which is no fork of one that has imported everything."""
    environment = os.environ | {"NEMOTRON_HOME": str(home)}
    return subprocess.Popen([*ALONE, *words], cwd=home.parent, env=environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_stopped_pipeline_leaves_no_process_and_goes_on_when_it_is_asked_again(tmp_path: Path) -> None:
    home = tmp_path / "home"
    pipeline = ["pipeline", "-c", "tiny", *SHORT_PIPELINE]
    stopped = alone(pipeline, home)
    lines = []
    while "2/7" not in (line := stopped.stderr.readline()):
        assert line, lines
        lines.append(line)
    stopped.send_signal(signal.SIGTERM)
    rest = stopped.stderr.read()
    assert stopped.wait() == 130, rest
    assert versions(home) == {"super3-pretrain-data": 1}
    assert not [entry for entry in Path("/proc").glob("[0-9]*/environ") if str(home) in _text(entry)]

    done = alone(pipeline, home)
    told = done.stderr.read()
    assert done.wait() == 0, told
    assert "unchanged: using super3-pretrain-data:v1" in told
    assert versions(home) == dict.fromkeys(ARTIFACTS, 1)


FORKED = """
import sys
from nemotron_app import launch
from nemotron_app.copies import copying, note_made
from nemotron_app.request import Request

launch.ending_with_us = None  # a step in a process of its own would need it
with copying():
    note_made(reused=False)
    for words in sys.argv[1:]:
        stage, *overrides = words.split()
        request = Request("super3", (stage,), "tiny", (*overrides, "run.family=super3"), False, False)
        code, made = launch.ask_step(stage, "train", request)
        print(code, stage, made["reused"])
"""


@pytest.mark.slow
def test_forked_trainings_make_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    """Those of the pipeline; those in processes of their own; and the last first, after all libraries were imported."""
    home, stages = tmp_path / "home", ("pretrain", "sft", "rl")
    made = alone(["pipeline", "-c", "tiny", *SHORT_PIPELINE], home)
    told = made.stderr.read()
    assert made.wait() == 0, told
    for stage in stages:
        again = alone([stage, "-c", "tiny", *SHORT[stage], "--force"], home)
        told = again.stderr.read()
        assert again.wait() == 0, told
    asked = [" ".join([stage, *SHORT[stage], "run.force=true"]) for stage in reversed(stages)]
    command = [sys.executable, "-c", FORKED, " ".join(["eval", *SHORT["eval"]]), *asked]
    forked = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"NEMOTRON_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert forked.stdout.splitlines() == ["0 eval False", *(f"0 {stage} False" for stage in reversed(stages))], (
        forked.stderr
    )
    for stage in stages:
        versions_of = (home / "artifacts" / f"super3-{stage}-model").glob("v*/model.safetensors")
        weights = [file.read_bytes() for file in versions_of]
        assert len(weights) == 3 and len({*weights}) == 1, stage


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""
