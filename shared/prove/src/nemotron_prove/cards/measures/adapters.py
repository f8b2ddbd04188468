"""Adapters that go to a file and back, and into the weights."""

from pathlib import Path

import torch
from peft import PeftModel

from nemotron_engines.lora.adapt import adapted
from nemotron_engines.lora.export import load_adapter, merged, save_adapter
from nemotron_prove.cards.measured import Measured
from nemotron_prove.cards.measures.tiny import distance, logits_of, tiny_model, tokens
from nemotron_shared.config.schema import LoraSection

SECTION = LoraSection(dim=8, alpha=16, dropout=0.0, layers=None, target_modules=[], exclude_modules=[])


def lora_round_trip(family: str, folder: Path) -> Measured:
    """Logits of adapters that were saved and loaded, and of merged ones, against those of the adapters in place."""
    ids = tokens(2, 20)
    first = _learned(adapted(tiny_model(family, folder), SECTION, 1))
    beside = logits_of(first, ids)
    save_adapter(first, folder / "adapter", None)
    second = adapted(tiny_model(family, folder), SECTION, 2).eval()
    load_adapter(second, folder / "adapter")
    loaded = distance(logits_of(second, ids), beside)
    whole, _ = merged(first)
    return Measured({"loaded": loaded, "merged": distance(logits_of(whole, ids), beside)}, 1e-4)


def _learned(model: PeftModel) -> PeftModel:
    """As if it had been trained: lora_B begins at zero."""
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.copy_(0.05 * torch.randn(value.shape, generator=draw))
    return model.eval()
