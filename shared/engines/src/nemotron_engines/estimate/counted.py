"""Describe a model of any architecture by the shapes of its tensors, as an estimate needs it. No torch.

    counted(Path("/models/qwen3"))     ({"hybrid_override_pattern": "****----", "hidden_size": 1024, ...},
                                        Parameters(total=596_049_920))

The headers of the safetensors say how large every matrix is and in which layer it lies; config.json adds heads,
experts a token, and the vocabulary. The result has the fields of an architecture of ours whose equal layers have as
many parameters in attention, Mamba, MLPs and experts as this model has, so that memory and operations follow by the
same formulas. A matrix counts once for each token: those of an MLP with a gate are half as many again.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nemotron_engines.lora.kinds import BESIDE_TEXT
from nemotron_engines.modeling.architecture import CAPS, DEFAULTS, SCALES, Parameters
from nemotron_shared.models.scales import is_small
from nemotron_shared.models.weights import Header, header_of
from nemotron_shared.system.atomic import read_json
from nemotron_shared.system.errors import UserError

LAYER = re.compile(r"(?P<stack>.*?)\b(?:layers|layer|blocks|block|h)\.(?P<number>\d+)\.(?P<rest>.+)")
ATTENTION = re.compile(r"att|(?:^|\.)(?:q|k|v|o|qkv)_proj\.")
SHARED_EXPERT = re.compile(r"shared_(?:expert|mlp)")
CONVOLUTION = re.compile(r"conv")
STATE = "A_log"
"""The tensor that every Mamba layer and every gated linear attention has; its first dimension counts the heads."""
OUT = re.compile(r"out_proj\.weight$")
KEYS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "experts": ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"),
    "chosen": ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_k"),
    "state": ("ssm_state_size", "state_size", "mamba_d_state", "linear_key_head_dim"),
    "chunk": ("chunk_size", "mamba_chunk_size"),
}
"""Names that architectures of transformers 5.23 have for one thing."""
Part = Literal["attention", "mamba", "experts", "other"]


@dataclass
class Layer:
    """Parameters of one layer's matrices, by what they are for.

    Attributes:
        state: heads and inner width of its Mamba; None without one.
        stored: how many experts are stored.
    """

    sizes: dict[Part, int] = field(default_factory=lambda: defaultdict(int))
    state: tuple[int, int] | None = None
    stored: int = 0


def counted(folder: Path) -> tuple[dict[str, Any], Parameters]:
    """The fields of an architecture of ours that is as large as a folder's model, part by part, and its parameters.

    Raises:
        UserError: nothing can be counted: without safetensors, with weights of few bits, or with names that tell no
            layers.
    """
    header: Header = {}
    for file in sorted(folder.glob("*.safetensors")):
        header |= header_of(str(file), file, whole=False)
    if not header:
        what = f"{folder}: no safetensors, by whose headers memory and time could be counted"
        raise UserError(what, "save the model with transformers' save_pretrained")
    if packed := next((name for name, tensor in header.items() if is_small(name, tensor)), None):
        what = f"{folder}: {packed} has few bits a weight, and no estimate counts those"
        raise UserError(what, "give the model in bfloat16")
    config = read_json(folder / "config.json")
    config |= config.get("text_config") or {}
    layers = _layers(header, _number(config, "experts"))
    hidden = _number(config, "hidden_size")
    if not layers or not hidden:
        lacking = "the names of its tensors tell no layers" if hidden else "config.json has no hidden_size"
        raise UserError(f"{folder}: memory and time cannot be counted: {lacking}", "plan a model of a known kind")
    experts = sum(layer.sizes["experts"] for layer in layers)
    parameters = Parameters(sum(_size(one.shape) for one in header.values()), experts, len(header))
    beside = {"norms_of_heads": any("q_norm." in name for name in header), "after_head": _after_head(config, header)}
    return _fields(config, hidden, layers) | beside, parameters


def _after_head(config: Mapping[str, Any], header: Header) -> Literal["", "scale", "cap"]:
    """What a model does to its logits after the product with its head; then their loss takes no chunks."""
    changes = [name for name in SCALES if config.get(name) not in (None, 1.0)]
    if any(name in CAPS for name in changes):
        return "cap"
    return "scale" if changes or "lm_head.bias" in header else ""


def _number(config: Mapping[str, Any], thing: str) -> int:
    """What config.json says under one of the names for a thing; 0 where it does not."""
    found = (config.get(name) for name in KEYS[thing])
    return next((value for value in found if isinstance(value, int) and not isinstance(value, bool)), 0)


def _size(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


def _layers(header: Header, experts: int) -> list[Layer]:
    """The layers that read text."""
    found: dict[tuple[str, str], dict[str, tuple[int, ...]]] = defaultdict(dict)
    for name, tensor in header.items():
        place = LAYER.match(name)
        if place and not BESIDE_TEXT.search(place["stack"]):
            found[place["stack"], place["number"]][place["rest"]] = tensor.shape
    return [_layer(shapes, experts) for shapes in found.values()]


def _layer(shapes: Mapping[str, tuple[int, ...]], experts: int) -> Layer:
    layer = Layer()
    scanned = {name.removesuffix(STATE): shape for name, shape in shapes.items() if name.endswith(STATE)}
    for name, shape in shapes.items():
        if len(shape) < 2 or name.endswith(STATE):
            continue
        part = _part(name, shape, scanned, experts)
        if part is None:
            continue
        layer.sizes[part] += _size(shape)
        if part == "experts":
            layer.stored = max(layer.stored, shape[0] if len(shape) == 3 else 0, *_numbers(name))
        if part == "mamba" and OUT.search(name):
            module = next(module for module in scanned if name.startswith(module))
            layer.state = scanned[module][0], shape[1]
    return layer


def _part(name: str, shape: tuple[int, ...], scanned: Iterable[str], experts: int) -> Part | None:
    """What a matrix is for; None for a convolution, which costs next to nothing."""
    if CONVOLUTION.search(name) and len(shape) > 2:
        return None
    stacked = len(shape) == 3 and shape[0] == experts > 1  # one tensor for all experts
    if (".experts." in f".{name}" or stacked) and not SHARED_EXPERT.search(name):
        return "experts"
    if any(name.startswith(module) for module in scanned if module):
        return "mamba"
    return "attention" if ATTENTION.search(name) else "other"


def _numbers(name: str) -> Iterable[int]:
    """How many experts there are at least, by the number of this one."""
    return (int(number) + 1 for number in re.findall(r"\bexperts\.(\d+)\.", name))


def _fields(config: Mapping[str, Any], hidden: int, layers: list[Layer]) -> dict[str, Any]:
    """Equal layers, with as many parameters of each part as these have together."""
    with_experts = [layer for layer in layers if layer.sizes["experts"]]
    plain = [layer for layer in layers if layer.sizes["other"] and not layer.sizes["experts"]]
    attending = [layer for layer in layers if layer.sizes["attention"]]
    scanning = [layer for layer in layers if layer.state]
    stored = max((layer.stored for layer in layers), default=0)
    fields = DEFAULTS | {
        "model_type": str(config.get("model_type")),
        "hybrid_override_pattern": "M" * len(scanning)
        + "*" * len(attending)
        + "E" * len(with_experts)
        + "-" * len(plain),
        "hidden_size": hidden,
        "vocab_size": config.get("vocab_size"),
        "n_routed_experts": stored,
        "num_experts_per_tok": _number(config, "chosen") or 1,
        "intermediate_size": _mean(plain, "other") / 2 / hidden,
        "chunk_size": _number(config, "chunk") or 128,
    }
    if with_experts:
        beside = max(0.0, _mean(with_experts, "other") - hidden * stored)  # the router is counted by itself
        fields["moe_intermediate_size"] = _mean(with_experts, "experts") / stored / 2 / hidden
        fields["moe_shared_expert_intermediate_size"] = beside / 2 / hidden
    if attending:
        fields |= _attention(config, hidden, _mean(attending, "attention"))
    if scanning:
        fields |= _mamba(config, hidden, scanning)
    return fields


def _mean(layers: list[Layer], part: Part) -> float:
    return sum(layer.sizes[part] for layer in layers) / len(layers) if layers else 0.0


def _attention(config: Mapping[str, Any], hidden: int, size: float) -> dict[str, Any]:
    """Heads by config.json; as many of keys and values as the matrices have room for."""
    heads = _number(config, "heads") or 1
    width = config.get("head_dim") or hidden // heads
    return {
        "num_attention_heads": heads,
        "head_dim": width,
        "num_key_value_heads": max(0.0, size / 2 / hidden / width - heads),
    }


def _mamba(config: Mapping[str, Any], hidden: int, layers: list[Layer]) -> dict[str, Any]:
    """Heads and widths by the tensors; the rest of the projections are groups of states."""
    heads, inner = next(layer.state for layer in layers if layer.state)
    state = _number(config, "state") or DEFAULTS["ssm_state_size"]
    rows = _mean(layers, "mamba") / hidden - inner  # those of the first projection
    groups = max(0.0, rows - 2 * inner - heads) / 2 / state
    return {
        "mamba_num_heads": heads, "mamba_head_dim": inner / heads, "n_groups": groups, "ssm_state_size": state,
    }  # fmt: skip
