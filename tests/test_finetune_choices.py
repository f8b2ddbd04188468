"""What `finetune` chooses for the training, with the settings of the command line."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from nemotron_app.finetune.plan import Plan, choose_training
from nemotron_app.store_options import Look
from nemotron_engines import defaults
from nemotron_engines.modeling.architecture import Parameters
from nemotron_shared.config.files import write_choices
from nemotron_shared.machine.machine import GB, GPU, Machine

Chosen = Callable[..., dict[str, Any]]
LORA = "engine.peft={dim: 8, alpha: 16, dropout: 0.0, layers: null, target_modules: [], exclude_modules: []}"


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Chosen:
    """Choices for a stage, a number of parameters and overrides, on a GPU of 80 GB."""
    card = Machine(python="3.12", processes=1, gpus=(GPU("H100", 80 * GB),), memory=64 * GB, free_disk=100 * GB)
    monkeypatch.setattr(Machine, "here", classmethod(lambda cls, home: card))

    def choose(stage: str, parameters: int, *overrides: str, base: dict[str, Any] | None = None) -> dict[str, Any]:
        monkeypatch.setattr(defaults, "parameters_in", lambda folder: Parameters(parameters))
        look: Any = Look(SimpleNamespace(home=tmp_path), "super3", False)  # type: ignore[arg-type]
        model: Any = SimpleNamespace(path=tmp_path / "model")
        folder = tmp_path / f"{stage}-{parameters}"
        plan = Plan(
            look, model, "base", ["chats.jsonl"], stage, "super3", "base", list(overrides), folder, False, False
        )
        write_choices(plan.file(), "local", [], base or {"run.model": "base"})
        splits = {"train": {"packed_rows": 100, "tokens": 100 * 4096, "conversations": 300}}
        data: Any = SimpleNamespace(manifest=SimpleNamespace(version=1, metadata={"splits": splits}))
        found = yaml.safe_load(choose_training(plan, data).read_text(encoding="utf-8"))
        choose_training(plan, data).unlink()
        return {key: found.get(section, {}).get(key) for section in found for key in found[section]
                if isinstance(found[section], dict)}  # fmt: skip

    return choose


@pytest.mark.parametrize("parameters", [661_000, 3_000_000_000])
@pytest.mark.parametrize("stage", ["sft", "pretrain"])
def test_adapters_have_their_own_rate_wherever_they_were_chosen(chosen: Chosen, stage: str, parameters: int) -> None:
    whole = chosen(stage, parameters)
    assert whole["lr"] in (2e-3, 1e-5) and "peft" not in whole
    for given in ("engine=transformers_lora", LORA):
        assert chosen(stage, parameters, given)["lr"] == defaults.ADAPTER_RATE, given
        assert chosen(stage, parameters, given)["min_lr"] == defaults.ADAPTER_RATE / 20
    section = {"engine.peft": defaults.LORA | {"dim": 4}}
    from_a_file = chosen(stage, parameters, base=section)
    assert from_a_file["lr"] == defaults.ADAPTER_RATE and "peft" not in from_a_file  # the file's stay as they are


def test_weights_that_shall_all_be_trained_have_the_rate_of_their_size(chosen: Chosen) -> None:
    large = 8_000_000_000
    assert (forced := chosen("sft", large))["lr"] == defaults.ADAPTER_RATE and forced["peft"] == defaults.LORA
    whole = chosen("sft", large, "engine.peft=null")
    assert whole["lr"] == defaults.LARGE_RATE and "dtype" not in whole and "peft" not in whole
    assert chosen("sft", large, "engine=transformers")["lr"] == defaults.LARGE_RATE
    recipe = chosen("sft", large, "engine=megatron_bridge", "engine.peft.scheme=lora")
    assert recipe["lr"] == defaults.ADAPTER_RATE and "peft" not in recipe
    assert chosen("sft", large, "engine=megatron_bridge")["lr"] == defaults.LARGE_RATE


def test_choices_fit_what_was_said(chosen: Chosen) -> None:
    small = 300_000_000
    said = chosen("sft", small, "optimizer.lr=1e-6", "train.global_batch_size=50", "train.train_iters=40")
    assert "lr" not in said and "global_batch_size" not in said and "train_iters" not in said
    assert said["min_lr"] == pytest.approx(1e-6 / 20)
    assert said["lr_warmup_iters"] == 2 and said["eval_interval"] == 10
