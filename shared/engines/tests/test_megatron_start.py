"""Where a training with Megatron takes its weights from: the model that it was given, and only then its own."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nemotron_engines.megatron_bridge.loop import set_start
from nemotron_engines.megatron_bridge.needs import problems
from nemotron_engines.megatron_bridge.translate import CHECKPOINT_MARK, weights_folder
from nemotron_shared.artifacts import Artifact
from nemotron_shared.engine.spec import Task


def folder_with(path: Path, *files: str) -> Path:
    for name in files:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("{}")
    return path


def task(model: Path | None) -> Task:
    given = Artifact.external(model) if model else None
    run = SimpleNamespace(directory=Path("unused"))
    return cast(Task, SimpleNamespace(inputs={"model": given}, input=lambda _role: given, run=run))


def start(pretrained: str | None, source: Path, model: Path | None) -> Any:
    """What `set_start` leaves of a container in which `pretrained` was set before."""
    container = SimpleNamespace(
        checkpoint=SimpleNamespace(pretrained_checkpoint=pretrained), tokenizer=SimpleNamespace(),
        train=SimpleNamespace(),
    )  # fmt: skip
    set_start(container, source, task(model))
    return container.checkpoint.pretrained_checkpoint


def test_a_given_model_starts_from_its_kept_checkpoint(tmp_path: Path) -> None:
    model = folder_with(tmp_path / "model", "config.json", "model.safetensors", f"megatron/{CHECKPOINT_MARK}")
    kept = str(weights_folder(task(model)))
    assert kept == str(model / "megatron")
    assert start(kept, model, model) == kept


def test_the_state_of_a_given_model_is_not_overlaid_with_its_weights(tmp_path: Path) -> None:
    model = folder_with(tmp_path / "model", "config.json", "model.safetensors")
    assert start(None, model, model) is None


def test_without_a_model_the_weights_drawn_here_are_read(tmp_path: Path) -> None:
    drawn = folder_with(tmp_path / "start", "config.json", "model.safetensors")
    assert start(None, drawn, None) == str(drawn)
    only_config = folder_with(tmp_path / "large", "config.json")
    assert start(None, only_config, None) is None


def test_a_model_without_a_checkpoint_starts_from_its_exported_weights(tmp_path: Path) -> None:
    model = folder_with(tmp_path / "model", "config.json", "model.safetensors.index.json")
    assert weights_folder(task(model)) == model


def told(model: Path | None, **engine: Any) -> list[str]:
    values = {
        "name": "megatron_bridge",
        "overrides": {},
        "keep_checkpoint": False,
        "start_from": "weights",
        "peft": SimpleNamespace(scheme=None),
        "recipe": None,
        "context_parallel_size": 1,
        **dict.fromkeys((f"{kind}_model_parallel_size" for kind in ("tensor", "pipeline", "expert")), 1),
    } | engine
    architecture = SimpleNamespace(architecture="nano3_tiny", overrides={})
    run, train = SimpleNamespace(model=None), SimpleNamespace()
    config = SimpleNamespace(engine=SimpleNamespace(**values), run=run, train=train, model=architecture)
    return [problem.message for problem in problems(cast(Any, config), task(model).inputs)]


def test_a_model_without_any_weights_is_refused(tmp_path: Path) -> None:
    model = folder_with(tmp_path / "model", "config.json", "megatron/latest_checkpointed_iteration.txt")
    assert ["has no safetensors weights" in line for line in told(model)] == [True]
    assert ["has no Megatron checkpoint" in line for line in told(model, start_from="state")] == [True]
    assert ["engine.start_from=state needs run.model" in line for line in told(None, start_from="state")] == [True]
    assert told(folder_with(model, f"megatron/{CHECKPOINT_MARK}"), start_from="state") == []


@pytest.mark.parametrize(
    ("scheme", "keep", "refused"), [("lora", True, True), ("lora", False, False), (None, True, False)]
)
def test_a_checkpoint_of_adapters_alone_is_not_kept(scheme: str | None, keep: bool, refused: bool) -> None:
    found = told(None, keep_checkpoint=keep, peft=SimpleNamespace(scheme=scheme))
    assert ["engine.keep_checkpoint: with adapters" in line for line in found] == [True] * refused
