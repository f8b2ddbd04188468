"""Adapters in a file: which layer each pair of matrices belongs to, what it adds, and the layout that servers want.

PEFT keeps the adapters of all experts in one pair of matrices, and calls two such pairs of a layer
`experts.lora_A` and `experts.base_layer.lora_A`. Which of them is that of `up_proj`, no name and often no shape says.
PEFT itself knows: the same config is put on a model without weights, and its modules are read.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file

from nemotron_engines.lora.adapt import layer_of, mamba_out_allowed
from nemotron_engines.modeling.build import ONLY_MADE, read_config, shell_of
from nemotron_engines.modeling.sizes import first_line
from nemotron_engines.modeling.stored import Stored, stored_in
from nemotron_shared.models.weights import ADAPTER_CONFIG, ADAPTER_ROOT, ADAPTER_WEIGHTS
from nemotron_shared.system.atomic import read_json, write_text
from nemotron_shared.system.errors import UserError

PREFIXES = ("model.", "backbone.")
"""What comes before `layers` in the names of modules, and in those of published tensors."""


@dataclass(frozen=True)
class Pair:
    """The two matrices next to a layer.

    Attributes:
        layer: the module that they adapt, `model.layers.3.mixer.q_proj`; of experts their tensor,
            `model.layers.1.mixer.experts.up_proj`.
        name: of both in the file, up to `.lora_A.weight`.
        scale: what their product is multiplied with: alpha / rank, or what the config says instead.
        experts: how many are in one pair of matrices; 0 for a plain layer.
    """

    layer: str
    name: str
    scale: float
    experts: int

    def factors(self, stored: Mapping[str, Stored]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """A (rank, in) and B (out, rank) in float32: one pair, or one for each expert."""
        a, b = (stored[f"{self.name}.lora_{side}.weight"].values().float() for side in "AB")
        if not self.experts:
            yield a, b
            return
        a, b = a.reshape(self.experts, -1, a.shape[-1]), b.reshape(b.shape[0], -1, self.experts)
        for expert in range(self.experts):
            yield a[expert], b[:, :, expert].contiguous()


def pairs_in(model: Path, adapter: Path) -> list[Pair]:
    """The pairs of an adapter folder in PEFT's own layout, for the model in the other folder.

    Raises:
        UserError: the file's matrices are not those that the config asks for.
    """
    shell = shell_of(read_config(model), ONLY_MADE)
    try:
        config = LoraConfig.from_pretrained(str(adapter))
        config.base_model_name_or_path = None  # else PEFT compares it with the model's place, and warns
        with mamba_out_allowed():
            made = get_peft_model(shell, config, low_cpu_mem_usage=True)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        what = f"{adapter}: PEFT cannot put it on {model}: {first_line(error)}"
        raise UserError(what, "give the adapter of this model") from error
    pairs = []
    for name, _ in made.named_parameters():
        wrapper, found, _ = name.partition(".lora_A.")
        if found:
            module = made.get_submodule(wrapper)
            experts = getattr(module, "num_experts", 1)
            pairs.append(Pair(layer_of(made, name), wrapper, module.scaling["default"], experts if experts > 1 else 0))
    there = stored_in(adapter).keys()
    wanted = {f"{pair.name}.lora_{side}.weight" for pair in pairs for side in "AB"}
    if differing := sorted(wanted ^ there):
        what = f"{adapter}: {len(differing)} tensors are not those of its {ADAPTER_CONFIG}, first {differing[0]}"
        raise UserError(what, "export the adapter again")
    return pairs


def published(layer: str, tensors: Mapping[str, Stored], expert: int | None = None) -> str | None:
    """The tensor of a model folder that a layer's pair is added to; None where it is called otherwise."""
    if expert is not None:
        experts, _, projection = layer.rpartition(".")
        layer = f"{experts}.{expert}.{projection}"
    short = next((layer.removeprefix(prefix) for prefix in PREFIXES if layer.startswith(prefix)), layer)
    names = (f"{layer}.weight", *(f"{prefix}{short}.weight" for prefix in PREFIXES))
    return next((name for name in names if name in tensors), None)


def unrolled(model: Path, adapter: Path) -> dict[str, torch.Tensor]:
    """The adapter's tensors with a pair for each expert, as vLLM, SGLang and llama.cpp name them."""
    stored, made = stored_in(adapter), dict[str, torch.Tensor]()
    for pair in pairs_in(model, adapter):
        experts, _, projection = pair.layer.rpartition(".")
        kind = stored[f"{pair.name}.lora_A.weight"].kind
        for number, sides in enumerate(pair.factors(stored)):
            layer = f"{experts}.{number}.{projection}" if pair.experts else pair.layer
            made |= {
                f"{ADAPTER_ROOT}{layer}.lora_{side}.weight": one.to(kind) for side, one in zip("AB", sides, strict=True)
            }
    return made


def unroll(model: Path, adapter: Path, into: Path) -> int:
    """Write the adapter with a pair for each expert, and count the pairs.

    Args:
        into: an existing folder; its adapter, if it has one, is replaced.
    """
    made = unrolled(model, adapter)
    layers = sorted({name.removeprefix(ADAPTER_ROOT).partition(".lora_")[0] for name in made})
    settings = read_json(adapter / ADAPTER_CONFIG) | {"target_modules": layers, "target_parameters": None}
    save_file({name: made[name].contiguous().clone() for name in sorted(made)}, into / ADAPTER_WEIGHTS,
              metadata={"format": "pt"})  # fmt: skip
    write_text(into / ADAPTER_CONFIG, json.dumps(settings, indent=2, sort_keys=True) + "\n")
    return len(layers)
