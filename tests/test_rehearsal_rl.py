"""Reinforcement learning is rehearsed as fine-tuning is, and a rehearsal that passed is remembered."""

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

import pytest
from support import last_values_win, make_model, make_reward_model, short
from zoo import Kind, chatml, write, write_kind

from nemotron_engines.modeling import cut
from nemotron_shared.step import rehearsal, remembered
from nemotron_shared.step.rehearsal import BEFORE, PASSED
from stages.rl import train
from stages.rl.engines.trl.trainer import JudgedTrainer

main = last_values_win(train.main)

METHODS = {
    "grpo": ("-c", "tiny"),
    "pairs": ("-c", "dpo_tiny"),
    "reward": ("-c", "reward_tiny"),
    "distillation": ("-c", "distill_tiny", "run.teacher=./teacher"),
    "reference": ("-c", "tiny", "grpo.reference_policy_kl_penalty=0.1", "grpo.updates_per_step=2"),
    "adapters": ("-c", "tiny", "engine=trl_lora"),
    "judged": ("-c", "tiny", "rewards=[{name: model, weight: -1.0}]", "run.reward_model=./scores"),
    "environment": ("-c", "drawers",),
}  # fmt: skip
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in METHODS if name != "grpo"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with an empty store below it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.mark.parametrize("name", ["grpo", *SLOW])
def test_one_step_of_each_method_has_a_gradient(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    make_model(place / "model") if name == "judged" else write("qwen3_moe", place / "model")
    write("qwen3_moe", place / "teacher")
    if name == "judged":
        make_reward_model(place / "scores")
    made: list[dict[str, Any]] = []
    load_again: Callable[[Path], Any] = cut.load_again

    def noted(folder: Path) -> Any:
        made.extend(map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()))
        return load_again(folder)

    monkeypatch.setattr(cut, "load_again", noted)
    assert main([*METHODS[name], "run.model=./model", "--rehearse"]) == 0
    assert PASSED in (told := capsys.readouterr().err), told
    (step,) = [line for line in made if "loss" in line]
    assert step["step"] == 1 and step["grad_norm"] > 0
    assert not JudgedTrainer.rehearses and not [*(place / "home").glob("artifacts/*")]


class Child:
    """In the place of a rehearsal's process; it counts how often one was started."""

    def __init__(self) -> None:
        self.started = 0

    def __call__(self, command: list[str], **_: Any) -> CompletedProcess[str]:
        self.started += 1
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            code = main(command[command.index("--composed") :])
        return CompletedProcess(command, code, "", said.getvalue())


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Child:
    found = Child()
    monkeypatch.setattr(rehearsal, "subprocess", SimpleNamespace(run=found))
    return found


def test_a_step_that_fails_is_one_sentence_of_a_dry_run(
    place: Path, monkeypatch: pytest.MonkeyPatch, child: Child, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: Any) -> Any:
        raise ValueError("range() arg 3 must not be zero")

    write("qwen3", place / "model")
    monkeypatch.setattr("stages.rl.engines.trl.sampling.noting_routes", fails)
    for _ in range(2):  # what failed is not remembered
        assert main([*short("rl"), "run.model=./model", "--dry-run"]) == 1
        said = "one step of this training fails with ValueError: range() arg 3 must not be zero"
        assert said in (told := capsys.readouterr().out).partition("# problems")[2] and "Traceback" not in told
    assert main([*short("rl"), "run.model=./model"]) == 2, "and a start prepares nothing"
    assert said in capsys.readouterr().err and not [*(place / "home").glob("artifacts/*")]
    assert child.started == 3


def test_what_passed_is_remembered_until_something_changes(
    place: Path, monkeypatch: pytest.MonkeyPatch, child: Child, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write("qwen3", place / "model")
    monkeypatch.setattr(rehearsal, "_train", lambda *_: SimpleNamespace(path=folder))

    def looked(*words: str) -> str:
        assert main([*short("rl"), "run.model=./model", *words, "--dry-run"]) == 0
        return capsys.readouterr().out

    assert PASSED in looked() and child.started == 1
    assert BEFORE in looked() and child.started == 1
    assert BEFORE in looked("train.train_iters=9", "grpo.max_new_tokens=16") and child.started == 1
    assert PASSED in looked("optimizer.weight_decay=0.3") and child.started == 2
    for name, changes in (("config.json", {"rope_theta": 5000.0}), ("tokenizer_config.json", {"model_max_length": 99})):
        values = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(values | changes))
        assert PASSED in looked() and BEFORE in looked()
    assert child.started == 4
    with monkeypatch.context() as changed:
        modules = remembered.modules_of_step
        changed.setattr(remembered, "modules_of_step", lambda *found: modules(*found) | {"stages.rl.new": "0"})
        assert PASSED in looked() and child.started == 5
    assert BEFORE in looked() and child.started == 5
    file = place / "home" / remembered.FILE
    for damaged in ("", "[1]", '{"a": 1}', file.read_text()[:99], "[" * 99_999):
        file.write_text(damaged)
        assert PASSED in looked() and BEFORE in looked()
    assert child.started == 10


def model_of(folder: Path, reference: str, model_type: str, *, verb: str = "train", **more: Any) -> Any:
    """A model of the store, as far as its line is looked at."""
    (folder / reference).mkdir(parents=True)
    (folder / reference / "config.json").write_text(json.dumps({"model_type": model_type}))
    parents = [SimpleNamespace(role=role, reference=one) for role, one in more.pop("parents", {}).items()]
    sources = [SimpleNamespace(uri=uri) for uri in more.pop("sources", ())]
    producer = SimpleNamespace(verb=verb, **{"stage": "sft", "code_digest": "1"} | more)
    manifest = SimpleNamespace(parents=parents, sources=sources, producer=producer)
    return SimpleNamespace(path=folder / reference, manifest=manifest, is_external=False)


def test_only_models_that_began_elsewhere_are_rehearsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "_modules", lambda _: {})
    now = remembered.json_digest({})
    models = {
        "own:v1": model_of(tmp_path, "own:v1", "nemotron_h", sources=["mine.yaml"], stage="pretrain"),
        "sft:v1": model_of(tmp_path, "sft:v1", "nemotron_h", parents={"model": "own:v1", "data": "lost:v1"}),
        "import:v1": model_of(tmp_path, "import:v1", "nemotron_h", verb="import"),
        "theirs:v1": model_of(tmp_path, "theirs:v1", "nemotron_h", parents={"model": "import:v1"}),
        "folder:v1": model_of(tmp_path, "folder:v1", "nemotron_h", sources=["/models/Qwen3-0.6B"]),
        "lost:v2": model_of(tmp_path, "lost:v2", "qwen3", parents={"model": "gone:v1"}),
        "same:v1": model_of(tmp_path, "same:v1", "qwen3", parents={"model": "import:v1"}, code_digest=now),
    }  # fmt: skip
    there = {name: [int(version)] for name, _, version in (one.partition(":v") for one in models)}
    store = SimpleNamespace(
        versions=lambda name: there.get(name, []), resolve=lambda found: models[f"{found.name}:v{found.version}"]
    )

    def rehearsed(stage: str) -> set[str]:
        checked: Any = SimpleNamespace(store=store, step=SimpleNamespace(stage=stage))
        return {name for name, model in models.items() if remembered.comes_from_elsewhere(checked, model)}

    assert rehearsed("rl") == {"import:v1", "theirs:v1", "folder:v1", "lost:v2", "same:v1"}
    assert rehearsed("sft") == rehearsed("rl") - {"same:v1"}, "this code has trained it before"


@pytest.mark.slow
def test_a_head_that_trl_does_not_compute_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """RecurrentGemma caps its logits under a name that TRL does not look for."""
    more = {"head_dim": 8, "attention_window_size": 32, "lru_width": 32, "num_hidden_layers": 3}
    write_kind(Kind("recurrent_gemma", chatml, more), place / "capped")
    assert main([*METHODS["pairs"], "run.model=./capped", "--dry-run"]) == 1
    assert "TRL 1.16 computes other log-probabilities than this model" in capsys.readouterr().out
