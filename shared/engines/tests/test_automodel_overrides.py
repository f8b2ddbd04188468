"""Overrides of Automodel's recipe, where torch and our own tables judge them and Automodel is not needed."""

import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nemotron_engines.automodel.overrides import apply_overrides, is_allowed_target
from nemotron_engines.automodel.settings import AutomodelEngine
from nemotron_shared.errors import UserError

RECIPE = {"model": {"backend": {"attn": "sdpa"}}, "optimizer": {"betas": [0.9, 0.95]}}


def applied(overrides: dict[str, Any], origins: dict[str, str]) -> dict[str, Any]:
    engine = SimpleNamespace(overrides=overrides, data="packed", strategy="fsdp2", allow_custom_targets=False)
    return apply_overrides(RECIPE, cast(AutomodelEngine, engine), origins)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"seed": 3}, r"seed: one of our own settings decides this\n  set run\.seed"),
        ({"dataset": {"shuffle_seed": 3}}, r"dataset\.shuffle_seed: our packed rows have no such setting"),
        (
            {"optimizer": {"beta": 3}},
            r"optimizer\.beta: Automodel's AdamW has no field 'beta'\n  did you mean 'betas'\?",
        ),
        ({"nvtx": 1}, r"nvtx: 1 is not of type bool"),
        ({"clip_grad_norm": {"backend": "tritn"}}, r"clip_grad_norm\.backend: 'tritn' is not of type"),
        ({"dist_env": {"timeout_minutes": True}}, r"dist_env\.timeout_minutes: True is not of type int"),
        ({"loss_fn": {"_target_": "os.system"}}, r"loss_fn\._target_: 'os\.system' is no loss or optimizer"),
    ],
)
def test_a_refused_override_is_named_with_its_place(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=rf"^nano3\.yaml:31: engine\.overrides\.{message}"):
        applied(overrides, {"engine.overrides": "nano3.yaml:31"})


def test_a_list_may_be_a_tuple_and_an_undeclared_type_anything() -> None:
    made = applied({"optimizer": {"betas": [0.8, 0.9]}, "model": {"backend": {}}, "sdpa_method": ["math"]}, {})
    assert made["optimizer"]["betas"] == [0.8, 0.9]
    assert made["sdpa_method"] == ["math"]


@pytest.mark.parametrize(
    "target",
    [
        "torch.distributed.run.os.system",  # the shell, found through torch
        "torch.distributed.run.main",  # torch's, and starts any script
        "torch.nn.modules.module.torch.load",
        "torch.optim.adamw.Optional",
        "torch.distributed",
        "torch.nosuch.Thing",
        "nemo_automodel.os.system",
        "subprocess.Popen",
        "antigravity.fly",  # would be imported, were it looked at
    ],
)
def test_a_target_is_judged_by_the_object_that_it_means(target: str) -> None:
    with pytest.raises(
        UserError, match=r"loss_fn\._target_: .* and would be called\n  set engine\.allow_custom_targets"
    ):
        applied({"loss_fn": {"_target_": target}}, {})
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("target", ["torch.optim.AdamW", "torch.optim.adamw.AdamW", "torch.nn.CrossEntropyLoss"])
def test_losses_and_optimizers_of_torch_are_allowed(target: str) -> None:
    assert is_allowed_target(target)
