"""Adapters trained here, in Automodel's own class and back: one function, and the same tensors under the same names."""

from pathlib import Path
from typing import Any

import pytest
import torch
from automodel_support import automodel_batch, automodel_model, logits_of, rows, save_tiny, transformers_batch
from safetensors.torch import load_file, save_file

from nemotron_shared.config.schema import LoraSection
from nemotron_shared.models.weights import ADAPTER_WEIGHTS

pytestmark = pytest.mark.automodel
SECTION = LoraSection(dim=8, alpha=16, dropout=0.0, layers=["attention", "mamba_in", "shared_experts", "latent"],
                      target_modules=[], exclude_modules=[])  # fmt: skip
PADDING = slice(0, 40)  # of both rows


@pytest.fixture(scope="module", autouse=True)
def shim() -> None:
    from nemotron_engines.stand_ins.automodel import install as prepare

    torch.set_num_threads(1)
    prepare()


def learned(model: Any) -> Any:
    """As if it had been trained: lora_B begins at zero."""
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.copy_(0.05 * torch.randn(value.shape, generator=draw))
    return model.eval()


def ours(folder: Path, seed: int) -> Any:
    from automodel_support import transformers_model

    from nemotron_engines.lora.adapt import adapted

    return adapted(transformers_model(folder), SECTION, seed)


def test_an_adapter_goes_to_automodel_and_comes_back(tmp_path: Path) -> None:
    from nemo_automodel.components._peft.lora import PeftConfig, apply_lora_to_linear_modules
    from nemo_automodel.components.checkpoint.stateful_wrappers import ModelState

    from nemotron_engines.lora.export import load_adapter, save_adapter

    folder = save_tiny(tmp_path)
    model = learned(ours(folder, 1))
    save_adapter(model, tmp_path / "adapter", str(folder))
    saved = load_file(tmp_path / "adapter" / ADAPTER_WEIGHTS)
    modules = sorted({name.removeprefix("base_model.model.").partition(".lora_")[0] for name in saved})

    theirs = automodel_model(folder)
    plain = PeftConfig(target_modules=modules, dim=8, alpha=16, use_memory_efficient_lora=False)
    assert apply_lora_to_linear_modules(theirs, plain) == len(modules) == 19
    state = ModelState(theirs, is_peft=True)
    assert state.state_dict().keys() == saved.keys()
    with torch.no_grad():
        base = logits_of(theirs.eval(), automodel_batch(rows()))
        state.load_state_dict(dict(saved), broadcast_from_rank0=False)  # this is the only rank
        there = logits_of(theirs.eval(), automodel_batch(rows()))
        here = logits_of(model, transformers_batch(rows()))
    assert float((there - base)[:, PADDING].abs().max()) > 0.1
    assert float((there - here)[:, PADDING].abs().max()) < 1e-4

    (tmp_path / "back").mkdir()
    back = {name: value.contiguous() for name, value in state.state_dict().items()}
    assert all(torch.equal(value, saved[name]) for name, value in back.items())
    save_file(back, tmp_path / "back" / ADAPTER_WEIGHTS)
    again = ours(folder, 2)
    load_adapter(again, tmp_path / "back")
    with torch.no_grad():
        assert torch.equal(logits_of(again.eval(), transformers_batch(rows())), here)
