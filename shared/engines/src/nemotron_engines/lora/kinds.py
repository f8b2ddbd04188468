"""Kinds of weights by name, and the ones that an `engine.peft` section selects. No torch.

model.layers.0.mixer.in_proj                     mamba_in
model.layers.1.mixer.experts.up_proj             experts      one tensor of all experts
model.layers.1.mixer.shared_experts.up_proj      shared_experts
model.layers.3.mixer.q_proj                      attention
lm_head                                          lm_head      outside the blocks: only `target_modules` reaches it
"""

import re
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from typing import Any, get_args

from nemotron_shared.config.schema import LayerKind, LoraSection
from nemotron_shared.system.errors import UserError

BLOCK_KINDS: tuple[str, ...] = get_args(LayerKind)
OTHER = "other"
ONLY_NAMED = "mamba_out"
"""Adapted only if `engine.peft.layers` names it, because PEFT refuses to load such an adapter."""
PATTERNS = {
    "attention": r"\.[qkvo]_proj|\.((self_|linear_)?attn|(self_)?attention)\.\w+",
    "mamba_in": r"\.in_proj",
    "mamba_out": r"\.out_proj",
    "experts": r"\.experts\.(gate_|up_|gate_up_|down_)proj",
    "shared_experts": r"\.shared_experts?\.\w+_proj",
    "latent": r"\.fc[12]_latent_proj",
    "router": r"\.(gate|router|shared_expert_gate)",
    "mlp": r"\.(gate|up|down)_proj|\.(mlp|ffn|feed_forward|shared_mlp)\.\w+|\.fc[12]",
    "lm_head": r"lm_head",
    "embeddings": r"embed\w*|wte|wpe",
}
"""Kind by the end of a name; the first match wins. The experts' projections have the names of a plain MLP's. Layers
inside an attention or an MLP belong to it under any name (`query_key_value`, `c_fc`, `fc1`)."""


BESIDE_TEXT = re.compile(r"vision|visual|audio|image|speech|multi_modal")
"""Names of parts that read no text: nothing here trains them."""


def kind_of(name: str) -> str:
    """Kind of a layer by its module's name, or for experts by the tensor's name."""
    if BESIDE_TEXT.search(name):
        return OTHER
    return next((kind for kind, pattern in PATTERNS.items() if re.search(rf"({pattern})$", name)), OTHER)


def without_adapters(model: Any) -> Any:
    """The base model without its adapters, or the model itself if it has none."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def chosen(names: Iterable[str], section: LoraSection) -> list[str]:
    """The layers that a section adapts, out of all candidates, in order.

    Raises:
        UserError: a kind or a pattern matches nothing, or nothing is left to adapt.
    """
    there = {name: kind_of(name) for name in names}
    kinds = section.layers
    if kinds is None:
        kinds = (
            [] if section.target_modules else [kind for kind in BLOCK_KINDS if kind in {*there.values()} - {ONLY_NAMED}]
        )
    lacking = [kind for kind in kinds if kind not in there.values()]
    if lacking:
        here = ", ".join(kind for kind in BLOCK_KINDS if kind in there.values())
        what = f"engine.peft.layers: this model has no layer of the kind {', '.join(lacking)}"
        raise UserError(what, f"it has: {here}; engine.peft.layers=null adapts all but {ONLY_NAMED}")
    for key in ("target_modules", "exclude_modules"):
        for pattern in getattr(section, key):
            if not any(fits(name, pattern) for name in there):
                some = ", ".join(sorted({name.rpartition(".")[2] for name in there}))
                what = f"engine.peft.{key}: '{pattern}' matches no layer of this model"
                raise UserError(what, f"layers end in: {some}; a pattern like '*.0.mixer.in_proj' matches one layer")
    wanted = [name for name in there if is_chosen(name, kinds, section)]
    if not wanted:
        ends = ", ".join(sorted({name.rpartition(".")[2] for name in there}))
        remedy = "shorten engine.peft.exclude_modules" if section.exclude_modules else "name engine.peft.target_modules"
        raise UserError("engine.peft chooses no layer", f"{remedy}; layers end in: {ends}")
    return wanted


def is_chosen(name: str, kinds: Collection[str], section: LoraSection) -> bool:
    """Whether a section adapts a layer, by its kind or a pattern."""
    named = any(fits(name, pattern) for pattern in section.target_modules)
    return (kind_of(name) in kinds or named) and not any(fits(name, pattern) for pattern in section.exclude_modules)


def tied_fault(wanted: Collection[str], tied: Collection[str]) -> UserError | None:
    """The error about adapters of a head that is also the embeddings, of whichever of the two; None without any.

    Args:
        wanted: the layers that a section adapts.
        tied: names of the head and the embeddings, where they are one tensor.
    """
    there = [name for name in wanted if name in tied]
    if not there:
        return None
    if len(there) == len(wanted):
        remedy = "name other layers, or none (engine.peft.target_modules=[]), which adapts those of the blocks"
    else:
        remedy = f"leave it out: engine.peft.exclude_modules=[{', '.join(there)}]"
    what = f"engine.peft adapts {' and '.join(there)}, but this model's head and embeddings are one tensor"
    return UserError(f"{what}, into which an adapter of either cannot be merged", f"{remedy}, or engine.peft=null")


def fits(name: str, pattern: str) -> bool:
    """Whether a pattern matches the whole name, or its last part."""
    return fnmatchcase(name, pattern) or fnmatchcase(name.rpartition(".")[2], pattern)
