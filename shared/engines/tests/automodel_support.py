"""A tiny Super3 model in both classes that can train it, and a batch of packed rows for both."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from packed_support import pack_row
from torch import Tensor

from nemotron_data.formats.packed import PackedRow
from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_engines.automodel.data import collate, neat_row
from nemotron_engines.automodel.loop import stage_base_model
from nemotron_engines.modeling.build import load_model, load_tokenizer, random_model, save_model
from nemotron_engines.rows import PackedCollator
from nemotron_shared.config.schema import ModelSection

CHOICES = SimpleNamespace(attn_implementation="sdpa", allow_reference_kernels=False)
LENGTH = 61


def save_tiny(folder: Path, seed: int = 7, dt_bias: float | None = None) -> Path:
    """A folder with the tiny Super3 architecture.

    `dt_bias` moves all time steps of its Mamba layers; these then lose their way past the scan (D)
    and get larger inputs, so that it shows.
    """
    save_tokenizer(folder / "tokenizer")
    section = ModelSection(architecture="super3_tiny", overrides={})
    model = random_model(section, load_tokenizer(folder / "tokenizer"), seed, CHOICES)
    if dt_bias is not None:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(("dt_bias", ".D")):
                    parameter.fill_(dt_bias if name.endswith("dt_bias") else 0.0)
                elif name.endswith("in_proj.weight"):
                    parameter.mul_(10)
    save_model(model, folder / "tokenizer", folder / "model")
    return folder / "model"


def transformers_model(folder: Path) -> Any:
    """transformers' class on our kernels."""
    return load_model(folder, CHOICES).train()


def automodel_model(folder: Path) -> Any:
    """Automodel's class on our kernels; the shim must be in place."""
    import nemo_automodel
    from nemo_automodel.components.models.common.utils import BackendConfig

    staged = stage_base_model(None, folder, folder, folder.with_name("staged"))
    backend = BackendConfig(
        attn="sdpa", linear="torch", rms_norm="torch_fp32", experts="torch", dispatcher="torch", rope_fusion=False
    )
    build = nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
    return build(str(staged), torch_dtype=torch.float32, force_hf=False, backend=backend).train()


def rows(seed: int = 0) -> list[PackedRow]:
    """Two packed rows of random tokens, the second shorter than the first."""
    draw = torch.Generator().manual_seed(seed)
    lengths = ([17, 5, 39], [11, 29])
    made = []
    for row in lengths:
        documents = [torch.randint(6, 500, (size,), generator=draw).tolist() for size in row]
        made.append(pack_row([(ids, [0, *[1] * (len(ids) - 1)]) for ids in documents]))
    return made


def transformers_batch(packed: list[PackedRow]) -> dict[str, Tensor]:
    """What our transformers engine feeds."""
    return PackedCollator()(packed)


def automodel_batch(packed: list[PackedRow]) -> dict[str, Any]:
    """What our Automodel engine feeds."""
    return collate([neat_row(row, LENGTH) for row in packed])


def logits_of(model: Any, batch: dict[str, Any]) -> Tensor:
    """Logits (rows, length, vocabulary)."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    out = model(**inputs) if "_packed_seq_ids" in batch else model(**inputs, use_cache=False)
    return getattr(out, "logits", out)


def loss_of(model: Any, batch: dict[str, Any]) -> Tensor:
    """Mean cross entropy over the counted tokens, in float32, the same for both models."""
    logits, labels = logits_of(model, batch).float(), batch["labels"]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def gradients(model: Any) -> dict[str, Tensor]:
    """Gradients under the names that published files use, one matrix for each expert."""
    found = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    if hasattr(model, "state_dict_adapter"):
        return model.state_dict_adapter.to_hf(found)
    split: dict[str, Tensor] = {}
    for name, value in found.items():
        name = name.replace("model.", "backbone.", 1) if name.startswith("model.") else name
        head, _, tail = name.partition(".experts.")
        if tail:
            split |= {f"{head}.experts.{index}.{tail}.weight": one for index, one in enumerate(value)}
        else:
            split[name] = value
    return split
