"""Overrides and recipes, judged by Automodel's own config classes."""

from pathlib import Path
from typing import Any

import pytest

from nemotron_engines.automodel.needs import apply_overrides
from nemotron_engines.automodel.translate import Places, translate
from nemotron_engines.transformers.trainer import learning_rate_factor
from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve
from nemotron_shared.config.validate import validate
from nemotron_shared.system.errors import UserError
from stages.sft.schema import SFTConfig
from stages.sft.train import STEP

pytestmark = pytest.mark.automodel
PLACES = Places(Path("/m"), Path("/t"), Path("/c"), Path("/d/train"), Path("/d/valid"), kind="packed")


@pytest.fixture(scope="module", autouse=True)
def shim() -> None:
    from nemotron_engines.stand_ins.automodel import install as prepare

    prepare()


def config_and_origins(choice: str, *overrides: str) -> tuple[SFTConfig, dict[str, str]]:
    composed = compose(STEP.directory / "config", choice, overrides)
    values = resolve(composed.tree, lambda role, field: f"<{role}.{field}>")
    return validate(SFTConfig, values, composed.origins), composed.origins


def config(choice: str, *overrides: str) -> SFTConfig:
    return config_and_origins(choice, *overrides)[0]


def recipe(*overrides: str, choice: str = "tiny", **places: Any) -> dict[str, Any]:
    words = (f"++engine.overrides.{one}" for one in overrides)
    chosen, origins = config_and_origins(choice, "engine=automodel", *words)
    made = translate(chosen, Places(**(vars(PLACES) | places)), 1, on_gpu=False)
    return apply_overrides(made, chosen.engine, origins)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("step_scheduler.gc_every_step=3", "did you mean 'gc_every_steps'"),
        ("step_scheduler.gc_every_steps=often", "'often' is not of type"),
        ("step_scheduler.max_steps=3", r"set train\.train_iters"),
        ("model.backend.fake_balanced_gate=7", "7 is not of type"),
        ("model.bakend.attn=te", "has no field 'bakend'"),
        ("model_parallel=3", "Automodel's recipe has no field"),
        ("distributed.sequence_paralel=true", "did you mean 'sequence_parallel'"),
        ("peft.use_dora=true", "cannot be merged"),
        ("dataset.shuffle_seed=3", "packed rows have no such setting"),
        ("loss_fn._target_=os.system", "is not an allowed loss"),
        ("packed_sequence={packed_sequence_size: 64, packing_strategy: thd}", "see each other"),
    ],
)
def test_wrong_overrides_are_refused(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        recipe(override)
    assert str(caught.value).startswith("command line: engine.overrides.")


def test_right_overrides_are_laid_over_the_rest() -> None:
    made = recipe(
        "step_scheduler.gc_every_steps=3", "peft.lora_A_init=uniform", "nvtx=true", "checkpoint.is_async=true"
    )
    assert made["step_scheduler"]["gc_every_steps"] == 3
    assert made["step_scheduler"]["max_steps"] == config("tiny").train.train_iters
    assert (made["peft"]["lora_A_init"], made["peft"]["dim"]) == ("uniform", 8)
    assert made["nvtx"] is made["checkpoint"]["is_async"] is True


def typed(made: dict[str, Any]) -> Any:
    """Automodel's typed view of a recipe; reading a section builds its class."""
    from nemo_automodel.components.config.loader import ConfigNode
    from nemo_automodel.recipes._typed_config import RecipeConfig

    return RecipeConfig(ConfigNode(made))


@pytest.mark.parametrize(("choice", "kind"), [("tiny", "packed"), ("nano3_lora_automodel", "chat")])
def test_automodel_takes_every_section(choice: str, kind: str) -> None:
    from nemo_automodel.recipes._dist_utils import parse_distributed_section

    chosen = config(choice, "engine=automodel") if choice == "tiny" else config(choice)
    view = typed(translate(chosen, Places(**(vars(PLACES) | {"kind": kind})), 4, on_gpu=False))
    assert view.step_scheduler.max_steps == chosen.train.train_iters
    assert view.dataloader.shuffle is (kind == "chat")
    assert set(view.validation_dataloaders) == {"default"}
    assert view.checkpoint.is_peft
    assert view.optimizer is not None
    assert view.loss_fn is not None
    strategy = parse_distributed_section(view.distributed.to_dict())["strategy_config"]
    assert str(strategy.mp_policy.param_dtype) == f"torch.{chosen.engine.dtype}"
    assert view.peft.instantiate().alpha == 32


@pytest.mark.parametrize("style", ["constant", "linear", "cosine", "WSD"])
def test_automodels_schedule_gives_our_learning_rates(style: str) -> None:
    import torch

    chosen = config("tiny", "engine=automodel", f"scheduler.lr_decay_style={style}", "scheduler.lr_wsd_decay_iters=50")
    view = typed(translate(chosen, PLACES, 1, on_gpu=False))
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=chosen.optimizer.lr)
    steps = type("Steps", (), {"epoch_len": 300, "num_epochs": 1, "max_steps": 300})
    schedule = view.lr_scheduler.build(optimizer, steps)[0]
    ours = learning_rate_factor(chosen.optimizer, chosen.scheduler, chosen.train.train_iters)
    for step in range(299):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(chosen.optimizer.lr * ours(step), rel=1e-9), step
        schedule.step(1)
