"""What an export holds of each tensor of its model: a folder, a GGUF file, or an adapter.

Each gives pairs: a tensor of the model as it should be found, and as it is found. A GGUF file has other names, experts
stacked, the rotary rows of queries and keys in another order, and -exp(A_log) for A_log: the model's side is changed in
the same way, so that every value of it is compared.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nemotron_engines.modeling.stored import Stored, stored_in
from nemotron_serving.gguf_file import Gguf
from nemotron_serving.passport.few_bits import factor_of, rounding_of
from nemotron_serving.passport.parts import Part
from nemotron_shared.models.folder import config_of
from nemotron_shared.models.scales import BESIDE, FLOATS, block_of, is_small

LAYER = re.compile(r"\.(?:layers|h)\.(\d+)\.")
EXPERT = re.compile(r"(?:.+)\.experts\.(\d+)\.(\w+)\.weight")
ROTATED = {"llama": True, "nemotron_h": True, "nemotron_h_moe": True, "qwen2": False, "qwen3": False}
"""Architectures of GGUF files whose changes are known here, and whether the rows of queries and keys are moved."""
PREDICTING = "mtp."
"""Tensors of the block that predicts further tokens, which no GGUF file of ours has."""


@dataclass(frozen=True)
class Counterpart:
    """A tensor of the model, and what the export has for it, both in parts of equal length.

    Attributes:
        dtype: of the export's side.
        rotate: what moves the rows of a query or key, where such a mistake could be made.
        within: how far each of the model's values may be off, where a scale decides.
    """

    name: str
    dtype: str
    wanted: Callable[[], Iterator[torch.Tensor]]
    found: Callable[[], Iterator[torch.Tensor]]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    rotate: Callable[[torch.Tensor], torch.Tensor] | None = None
    within: Callable[[torch.Tensor], torch.Tensor] | None = None


def in_folder(source: Mapping[str, Stored], folder: Path, part: Part) -> Iterator[Counterpart]:
    """The pairs of an exported folder, which has the model's own names; weights of 8 bits with their scales."""
    target, block = stored_in(folder), block_of(config_of(folder))
    _require_all(
        source, {name: one for name, one in target.items() if name in source or not BESIDE.fullmatch(name)}, part
    )
    for name, one in source.items():
        if name in target:
            other = target[name]
            if one.dtype in FLOATS and is_small(name, other):
                factor = factor_of(name, target, block)
                if factor is not None:  # lost scales are named where scales are checked
                    yield _of_few_bits(one, other, factor)
                continue
            yield Counterpart(name, other.dtype, one.parts, other.parts, (one.shape, other.shape))


def _of_few_bits(one: Stored, other: Stored, factor: torch.Tensor) -> Counterpart:
    return Counterpart(
        one.name, other.dtype, lambda: iter([one.values().double()]),
        lambda: iter([other.values().float().double() * factor]), (one.shape, other.shape),
        within=lambda wanted: rounding_of(wanted, factor, other.dtype),
    )  # fmt: skip


def in_gguf(source: Mapping[str, Stored], file: Gguf, config: dict[str, Any], part: Part) -> Iterator[Counterpart]:
    """The pairs of a GGUF file."""
    architecture = str(file.settings.get("general.architecture"))
    if architecture not in ROTATED:
        part.not_run.append(f"what llama.cpp changes in the tensors of {architecture} is not known here")
        return
    import gguf

    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, int(file.settings.get("block_count", 0)))
    places: dict[str, tuple[str, int | None]] = {}
    for name in source:
        if name.startswith(PREDICTING):
            continue
        if (place := _place(name, names)) is None:
            part.find(name, "has no place in a GGUF file")
        else:
            places[name] = place
    left_out = sum(name.startswith(PREDICTING) for name in source)
    if left_out:
        part.facts.append(("left out", f"{left_out} tensors of the block that predicts further tokens"))
    there = dict.fromkeys(where for where, _ in places.values())
    _require_all(there, file.tensors, part)
    for name, (where, expert) in places.items():
        if where in file.tensors:
            yield _of_gguf(source[name], file, where, expert, config, ROTATED[architecture])


def _place(name: str, names: Any) -> tuple[str, int | None] | None:
    """The name of a tensor in a GGUF file, and the number of an expert in it."""
    layer, expert = LAYER.search(name), EXPERT.fullmatch(name)
    key, number = name, None
    if expert and layer:
        key, number = f"model.layers.{layer[1]}.mlp.experts.{expert[2]}.weight", int(expert[1])
    key = key.replace(".dt_bias", ".dt.bias").replace(".e_score_correction_bias", ".e_score_correction.bias")
    found = names.get_name(key, try_suffixes=(".weight", ".bias"))
    return None if found is None else (found, number)


def _of_gguf(
    one: Stored, file: Gguf, where: str, expert: int | None, config: dict[str, Any], rotated: bool
) -> Counterpart:
    values = file.values(where) if expert is None else file.values(where)[expert]
    shape, rotate = one.shape, None
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(one.name.split(".")[-2])
    if heads and rotated:
        count = config.get(heads) or config["num_attention_heads"]

        def rotate(tensor: torch.Tensor) -> torch.Tensor:
            halves = tensor.reshape(count, 2, tensor.shape[0] // count // 2, *tensor.shape[1:])
            return halves.swapaxes(1, 2).reshape(tensor.shape)

    def wanted() -> Iterator[torch.Tensor]:
        tensor = one.values()
        if one.name.endswith("A_log"):
            tensor = -torch.exp(tensor.float())
        yield rotate(tensor) if rotate else tensor

    def found() -> Iterator[torch.Tensor]:
        yield values.reshape(shape) if values.numel() == torch.Size(shape).numel() else values

    # norms, convolutions and A have other shapes there, with the same values in the same order
    same = values.numel() == torch.Size(shape).numel() and (len(shape) != 2 or "norm" in one.name)
    shapes = (shape, shape) if same else (shape, tuple(values.shape))
    return Counterpart(one.name, file.dtype(where), wanted, found, shapes, rotate)


def is_unrolled(names: Iterable[str]) -> bool:
    """Whether an adapter has a pair of matrices for each expert, by the names of its tensors or layers."""
    return any(re.search(r"\.experts\.\d+\.", name) for name in names)


def in_adapter(model: Path, adapter: Path, folder: Path, part: Part) -> Iterator[Counterpart]:
    """The pairs of an exported adapter: as it was trained, or with a pair of matrices for each expert."""
    from nemotron_engines.lora.layout import unrolled  # PEFT takes a second to import

    target = stored_in(folder)
    if not is_unrolled(target):
        yield from in_folder(stored_in(adapter), folder, part)
        return
    wanted = unrolled(model, adapter)
    _require_all(wanted, target, part)
    for name, tensor in wanted.items():
        if name in target:
            one = target[name]
            yield Counterpart(
                name, one.dtype, lambda tensor=tensor: iter([tensor]), lambda one=one: iter([one.values()]),
                (tuple(tensor.shape), one.shape),
            )  # fmt: skip


def _require_all(wanted: Mapping[str, Any], there: Mapping[str, Any], part: Part) -> None:
    """Note what was lost and what was invented."""
    for name in wanted:
        if name not in there:
            part.find(name, "is missing in the export")
    for name in there:
        if name not in wanted:
            part.find(name, "is in the export, and not in the model")
