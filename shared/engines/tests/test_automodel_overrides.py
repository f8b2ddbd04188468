"""Overrides of Automodel's recipe, where torch and our own tables judge them and Automodel is not needed."""

import re
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nemotron_engines.automodel.needs import apply_overrides
from nemotron_engines.automodel.settings import AutomodelEngine
from nemotron_engines.overrides import TARGETS, foreign_code, is_allowed
from nemotron_shared.system.errors import UserError

RECIPE = {"model": {"backend": {"attn": "sdpa"}}, "optimizer": {"betas": [0.9, 0.95]}}


def applied(overrides: dict[str, Any], origins: dict[str, str]) -> dict[str, Any]:
    engine = SimpleNamespace(overrides=overrides, data="packed", strategy="fsdp2", allow_custom_targets=False)
    return apply_overrides(RECIPE, cast(AutomodelEngine, engine), origins)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"seed": 3}, r"seed: another setting decides this\n  set run\.seed"),
        ({"dataset": {"shuffle_seed": 3}}, r"dataset\.shuffle_seed: packed rows have no such setting"),
        (
            {"optimizer": {"beta": 3}},
            r"optimizer\.beta: Automodel's AdamW has no field 'beta'\n  did you mean 'betas'\?",
        ),
        ({"nvtx": 1}, r"nvtx: 1 is not of type bool"),
        ({"clip_grad_norm": {"backend": "tritn"}}, r"clip_grad_norm\.backend: 'tritn' is not of type"),
        ({"dist_env": {"timeout_minutes": True}}, r"dist_env\.timeout_minutes: True is not of type int"),
        ({"loss_fn": {"_target_": "os.system"}}, r"loss_fn\._target_: 'os\.system' would be called"),
    ],
)
def test_a_refused_override_is_named_with_its_place(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=rf"^nano3\.yaml:31: engine\.overrides\.{message}"):
        applied(overrides, {"engine.overrides": "nano3.yaml:31"})


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ({"model": {"kwargs": {"_target_": "os.system", "command": "x"}}}, "model.kwargs._target_"),
        ({"model": {"quantization_config": {"_target_": "builtins.eval"}}}, "model.quantization_config._target_"),
        ({"model": {"model_args": [{"a": [{"_target_": "os.system"}]}]}}, "model.model_args[0].a[0]._target_"),
        ({"dataloader": {"collate_fn": "/tmp/evil.py:x"}}, "dataloader.collate_fn"),
        ({"model": {"kwargs": {"x_fn": "/tmp/evil.py:x"}}}, "model.kwargs.x_fn"),
        ({"vllm_kwargs": {"worker_cls": "evil.Worker"}}, "vllm_kwargs.worker_cls"),
        ({"vllm_kwargs": {"logits_processors": ["os:system"]}}, "vllm_kwargs.logits_processors"),
        ({"hf_config_overrides": {"auto_map": {"AutoModel": "evil.Evil"}}}, "hf_config_overrides.auto_map"),
        ({"loss_fn": {"_target_": ["os.system"]}}, "loss_fn._target_"),
    ],
)
def test_code_is_found_at_any_depth_when_it_starts_and_before(overrides: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=rf"^engine\.overrides\.{re.escape(key)}: .* would be called"):
        applied(overrides, {})
    [problem] = foreign_code(overrides, "engine.allow_custom_targets")
    assert problem.key == f"engine.overrides.{key}"


def test_known_code_and_sections_are_no_foreign_code() -> None:
    known = {
        "loss_fn": {"_target_": "torch.nn.CrossEntropyLoss"},
        "dataloader": {"collate_fn": "nemo_automodel.components.datasets.utils.default_collater"},
    }
    assert not list(foreign_code(known))
    assert [problem.message for problem in foreign_code({"model": [{"trust_remote_code": True}]})] == [
        "this cannot be set in a file"
    ]


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
        "torch.jit.ScriptModule",
        "torch.nn.Module.__init__",
        "antigravity.fly",  # would be imported, were it looked at
        "functools.partial",
        "torch.optim.adamw.torch.optim.AdamW.__init__",
        "torch.nn.modules.loss.F.torch.os.system",
        "torch.optim.Optimizer",
        "torch.nn.Module",
        "torch.nn.DataParallel",
        "nemo_automodel.cli.app.main",
        "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
        " torch.optim.AdamW",
        "torch.optim.AdamW\n",
        "${oc.env:HOME}",
        "",
    ],
)
def test_a_target_is_judged_by_the_object_that_it_means(target: str) -> None:
    with pytest.raises(UserError, match=r"loss_fn\._target_: .* would be called.*\n  set engine\.allow_custom_targets"):
        applied({"loss_fn": {"_target_": target}}, {})
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("key", ["_args_", "_partial_", "_recursive_", "_convert_", "_mode_"])
def test_how_to_call_something_cannot_be_said(key: str) -> None:
    for overrides in ({"loss_fn": {"_target_": "torch.nn.CrossEntropyLoss", key: ["x"]}}, {"model": [{key: True}]}):
        with pytest.raises(UserError, match=rf"{key}: this would call arbitrary code"):
            applied(overrides, {})
        assert [key in problem.key for problem in foreign_code(overrides)] == [True]


def test_torchs_names_in_the_table_mean_what_it_says() -> None:
    names = [name for name in TARGETS if name.startswith("torch.")]
    assert len(names) == 38
    assert [name for name in names if not is_allowed(name)] == []


def test_a_name_that_means_something_else_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    import torch

    monkeypatch.setattr(torch.optim, "AdamW", os.system)
    assert not is_allowed("torch.optim.AdamW")
    forged = type("AdamW", (), {"__module__": "torch.optim.adamw"})
    monkeypatch.setattr(torch.optim, "AdamW", forged)
    assert not is_allowed("torch.optim.AdamW")
