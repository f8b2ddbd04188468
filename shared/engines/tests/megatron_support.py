"""The synthetic data, and tasks around it, for tests of Megatron-Bridge's configuration."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.config.compose import Composed, compose
from nemotron_shared.config.references import resolve
from nemotron_shared.config.validate import validate
from nemotron_shared.engine.spec import Task
from nemotron_shared.step.arguments import Arguments
from nemotron_shared.step.start import artifact_field, load
from nemotron_shared.step.step import make
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.run import Run

STAGES = Path(__file__).parents[3] / "stages"
SMALL = {"pretrain": "data_prep.synthetic_documents=200", "sft": "data_prep.synthetic_chats=60"}
# The production recipes with the number of processes that each is made for.
RECIPES = {
    "pretrain": {
        "super3": 64, "super3+super3_32gpus": 32, "super3+super3_128gpus": 128, "super3_phase2": 64,
        "super3_long_context": 128, "nano3": 8, "ultra3": 768, "ultra3_phase2": 768, "lightning35": 16,
    },
    "sft": {
        "super3": 16, "super3+super3_32gpus": 32, "super3_lora": 16, "nano3": 8, "nano3_lora": 8, "ultra3": 192,
        "ultra3_lora": 32, "lightning35": 16, "lightning35_lora": 8,
    },
}  # fmt: skip
EVERY_RECIPE = [(stage, name) for stage, names in RECIPES.items() for name in names]


def prepared(stage: str, home: Path, *overrides: str) -> Artifact:
    """Run the stage's real data preparation on a little of the synthetic data."""
    script = importlib.import_module(f"stages.{stage}.data_prep")
    words = (f"run.home={home}", "data_prep.workers=1", SMALL[stage], *overrides)
    return make(load(script.STEP, Arguments("tiny", words, dry_run=False, json=False)))[0]


def composed(stage: str, name: str, *overrides: str) -> Composed:
    """A config of the stage, as the command line would compose it; `super3+super3_32gpus` with that layout."""
    choice, _, engine = name.partition("+")
    return compose(STAGES / stage / "config", choice, [*([f"engine={engine}"] if engine else []), *overrides])


def config_of(stage: str, name: str, *overrides: str, inputs: dict[str, Artifact | None] | None = None) -> Any:
    """The validated config; without inputs, every `${art:...}` is a number."""
    tree = composed(stage, name, *overrides)
    values = resolve(tree.tree, lambda role, field: artifact_field(inputs, role, field) if inputs else 1)
    return validate(importlib.import_module(f"stages.{stage}.train").STEP.schema, values, tree.origins)


def task_of(
    stage: str, name: str, folder: Path, data: Artifact, *overrides: str, model: Artifact | None = None
) -> Task:
    """A task as `train(task)` gets it; its run has a folder but no lock and no published result."""
    inputs = {"data": data, "model": model}
    run = Run(folder / f"run-{stage}-{name}", f"{stage}-{name}")
    run.directory.mkdir(parents=True, exist_ok=True)
    origins = composed(stage, name, *overrides).origins
    return Task(config_of(stage, name, *overrides, inputs=inputs), inputs, run, Store.open(str(folder)), origins)


def model_for(stage: str, name: str, folder: Path, data: Artifact) -> Artifact | None:
    """A model folder of the recipe's architecture (its config.json only), where the stage starts from one."""
    from nemotron_engines.megatron_bridge.translate import write_model_config

    config = config_of(stage, name)
    if config.run.missing_model == "random":
        return None
    path = write_model_config(config.model, data.path / "tokenizer", folder / f"model-{name}")
    kept = path / "megatron"
    kept.mkdir()
    (kept / "latest_train_state.pt").touch()
    return Artifact.external(path)


def prepared_and_stubbed(stage: str, home: Path, *overrides: str) -> Artifact:
    """Data for configurations that Bridge itself shall build; the stubs, which change the process, come after it."""
    from nemotron_engines.stand_ins.transformer_engine import install_stubs

    artifact = prepared(stage, home, *overrides)
    install_stubs()
    return artifact


def recipe_task(stage: str, name: str, folder: Path, data: Artifact, *overrides: str) -> Task:
    """A task of a recipe, with the model that it starts from where it starts from one."""
    return task_of(stage, name, folder, data, *overrides, model=model_for(stage, name, folder, data))


def build(stage: str, name: str, folder: Path, data: Artifact, *overrides: str, world_size: int | None = None) -> Any:
    """The ConfigContainer that Bridge accepts for a recipe, at its own number of processes or at another."""
    from nemotron_engines.megatron_bridge.translate import build_config

    task = recipe_task(stage, name, folder, data, *overrides)
    return build_config(task, world_size=world_size or RECIPES[stage][name])


def refusal(stage: str, name: str, folder: Path, data: Artifact, *overrides: str, world_size: int | None = None) -> str:
    """What the user is told of a recipe that cannot be built like this."""
    with pytest.raises(UserError) as caught:
        build(stage, name, folder, data, *overrides, world_size=world_size)
    return str(caught.value)
