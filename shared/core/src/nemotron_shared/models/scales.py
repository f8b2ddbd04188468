"""Weights of few bits in a model's folder: they are numbers only together with their scales.

    lost = lost_scales(tensors, config)     scales that are missing, do not fit, or belong to nothing
    other = told_otherwise(tensors, config) what quantization_config says, and the weights are not

Both read headers alone. Layouts that are known: FP8 of ModelOpt and DeepSeek, NVFP4, MXFP4, compressed-tensors, GPTQ
and AWQ. A folder that lost its scales still loads in some programs, as a model that answers nonsense.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from nemotron_shared.system.errors import UserError, printable


@dataclass(frozen=True)
class Tensor:
    """What a header says of a tensor: type, as safetensors calls it, shape, and the place of its first byte."""

    dtype: str
    shape: tuple[int, ...]
    start: int


Tensors = Mapping[str, Tensor]
Faults = list[tuple[str, str]]
"""The tensor or key, and what is wrong with it."""

SCALES = ("_scale", "_scale_inv")
"""Ends of the names of scales, behind the whole name of their tensor."""
SECOND = ("_scale_2", "_global_scale")
"""The same for the scale of scales that have 8 bits themselves."""
BESIDE = re.compile(
    r".*(_scale(_inv|_2)?|_global_scale|_zero_point|weight_shape|_scales|\.(scales|qzeros|g_idx|SCB|absmax))"
)
"""Names of what belongs to weights of few bits: scales, also of inputs and caches, zeros and shapes."""
FLOATS = ("F64", "F32", "F16", "BF16")
"""Types whose values are numbers by themselves."""
INTEGERS = ("I8", "U8", "I32")
"""Types that hold weights under names that say so; other integers are masks and positions."""
QUANTIZED = ("quantization_config", "compression_config")
EXCLUDED = ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers")
"""Keys of a quantization_config for the modules that keep their type."""
ALWAYS_SMALL = ("fp8", "fbgemm_fp8", "modelopt")
"""Methods that always store weights of few bits."""
SHOWN = 200


def is_small(name: str, tensor: Tensor) -> bool:
    """Whether a tensor holds weights of 8 bits or fewer; packed ones are whole numbers."""
    if BESIDE.fullmatch(name):
        return False
    packed = len(tensor.shape) > 1 and name.endswith((".weight", ".weight_packed", ".qweight", "_blocks"))
    return tensor.dtype.startswith(("F8_", "F4", "F6_")) or (tensor.dtype in INTEGERS and packed)


def small_in(tensors: Tensors) -> list[str]:
    """Names of the tensors that hold such weights."""
    return [name for name, tensor in tensors.items() if is_small(name, tensor)]


def scale_of(name: str, tensors: Tensors) -> str | None:
    """The scale of a tensor of few bits, if it is there."""
    if name.endswith("_blocks"):
        names = [f"{name.removesuffix('_blocks')}_scales"]
    elif name.endswith(".qweight"):
        names = [f"{name.removesuffix('.qweight')}.scales"]
    else:
        names = [f"{name.removesuffix('_packed')}{ending}" for ending in SCALES]
        names += [f"{name}_scales", f"{name}.absmax", f"{name.removesuffix('weight')}SCB"]  # of EETQ and bitsandbytes
    return next((one for one in names if one in tensors), None)


def block_of(config: Mapping[str, Any]) -> list[int] | None:
    """Rows and columns of FP8 weights that share a scale, if the config names them."""
    told = config.get(QUANTIZED[0])
    block = told.get("weight_block_size") if isinstance(told, dict) else None
    known = isinstance(block, list) and len(block) == 2 and all(type(size) is int and size > 0 for size in block)
    return block if known else None


def lost_scales(tensors: Tensors, config: Mapping[str, Any]) -> Faults:
    """Scales that are missing or do not fit, and those whose weights are no longer of few bits."""
    faults, block, scaled = list[tuple[str, str]](), block_of(config), _scales_inputs(config)
    for name, tensor in tensors.items():
        kind, shape = tensor.dtype, tensor.shape
        if not is_small(name, tensor):
            if orphan := _orphan(name, tensors):
                faults.append((name, orphan))
            continue
        scale, inputs = scale_of(name, tensors), f"{name.removesuffix('weight')}input_scale"
        if scaled and inputs not in tensors:
            faults.append((inputs, "is missing, and quantization_config says that it is known"))
        if scale is None:
            known = f"{name.removesuffix('_packed')}{SCALES[0]}"
            faults.append((name, f"is stored as {kind}, and its scale is missing: {known}"))
            continue
        fine, has = tensors[scale].dtype, tensors[scale].shape
        blocks = block if len(shape) > 1 and kind.startswith("F8_") and scale.endswith("_inv") else None
        wanted = [math.ceil(size / by) for size, by in zip(shape[-2:], blocks, strict=True)] if blocks else None
        if wanted and list(has[-2:]) != wanted:
            faults.append((scale, f"has the shape {list(has)}, and blocks of {blocks} need {wanted}"))
        elif kind.startswith("F8_") and any(a > b for a, b in zip(has, shape, strict=False)):
            faults.append((scale, f"has the shape {list(has)}, and its weight {list(shape)}"))
        base = name.removesuffix("_packed")
        if fine.startswith("F8_E4M3") and not any(f"{base}{ending}" in tensors for ending in SECOND):
            faults.append((scale, f"is stored as {fine}, and its own scale is missing: {base}{SECOND[0]}"))
    return faults


def _scales_inputs(config: Mapping[str, Any]) -> bool:
    """Whether the config says that what enters each quantised layer has a fixed scale, as ModelOpt's FP8 does."""
    told = config.get(QUANTIZED[0])
    if not isinstance(told, dict) or told.get("quant_method") != "modelopt" or told.get("quant_algo") != "FP8":
        return False
    groups = told.get("config_groups")
    each = groups.values() if isinstance(groups, dict) else ()
    inputs = [one.get("input_activations") for one in each if isinstance(one, dict)]
    return any(isinstance(one, dict) and one.get("dynamic") is False for one in inputs)


def _orphan(name: str, tensors: Tensors) -> str | None:
    """What is wrong with the scale of a weight, if this is one, and the weight is no longer of few bits."""
    ending = next((end for end in (*SECOND, *reversed(SCALES)) if name.endswith(f"weight{end}")), None)
    if ending is None:
        return None
    weight = name.removesuffix(ending)
    if (found := tensors.get(weight)) and found.dtype in FLOATS:
        return f"is a scale, and {weight} is stored as {found.dtype}: was it applied?"
    return None if found or f"{weight}_packed" in tensors else f"is a scale, and {weight} is missing"


def told_otherwise(tensors: Tensors, config: Mapping[str, Any]) -> Faults:
    """What a config says of weights of few bits, and the folder does not hold, or holds more than that."""
    key = next((key for key in QUANTIZED if isinstance(config.get(key), dict)), None)
    small = small_in(tensors)
    if key is None:
        what = f"is missing, and {len(small)} tensors are of 8 bits or fewer, first {small[0]}" if small else ""
        return [(f"config.json: {QUANTIZED[0]}", what)] if small else []
    told = config[key]
    method = told.get("quant_method")
    if not small and method in ALWAYS_SMALL:
        return [(f"config.json: {key}", f"says {method}, and all weights have 16 bits or more")]
    name, entries = excluded(told)
    faults: Faults = []
    if method == "modelopt" and told.get("quant_algo") == "FP8":
        wrong = ((one, tensors[one].dtype) for one in small if tensors[one].dtype != "F8_E4M3")
        faults += [(one, f"is stored as {kind}, and quant_algo FP8 means F8_E4M3") for one, kind in wrong]
    if damaged := [entry for entry in entries if not entry.isprintable()]:
        what = f"{len(damaged)} entries are damaged, first {printable(damaged[0][:SHOWN])}"
        faults.append((f"config.json: {key}.{name}", what))
    kinds = {_kind(name) for name in small}
    for one, tensor in tensors.items():
        module = one.removesuffix(".weight")
        named = any(is_named(module, entry) for entry in entries)
        if module != one and tensor.dtype in FLOATS and _kind(one) in kinds and not named:
            faults.append(
                (one, f"is stored as {tensor.dtype}, others of its kind in few bits, and {name} does not say so")
            )
    for one in small:
        module = re.sub(r"\.(weight|weight_packed|qweight)$", "", one)
        if any(is_named(module, entry) for entry in entries):
            faults.append((one, f"is of few bits, and config.json says that it is not ({name})"))
    return faults


def _kind(name: str) -> str:
    """Name of a tensor without numbers of layers and experts."""
    return re.sub(r"\.\d+\.", ".N.", re.sub(r"\.\d+\.", ".N.", name)).replace("_packed", "")


def excluded(told: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The key of a quantization_config for modules that keep their type, and its entries."""
    key, found = next(((name, told[name]) for name in EXCLUDED if isinstance(told.get(name), list)), ("ignore", []))
    return key, [entry for entry in found if isinstance(entry, str)]


def is_named(module: str, entry: str) -> bool:
    """Whether an entry of a list of excluded modules means this module or one above it."""
    if entry.startswith("re:"):
        try:
            return re.match(entry[3:], module) is not None
        except re.error:
            return False
    return fnmatch(module, entry) or f".{module}.".find(f".{entry}.") >= 0


def require_scales(label: str, tensors: Tensors, config: Mapping[str, Any]) -> None:
    """Refuse weights of few bits that are not numbers, because their scales are lost or do not fit.

    Raises:
        UserError: naming the tensor.
    """
    faults = lost_scales(tensors, config)
    if faults:
        where, what = faults[0]
        more = f" ({len(faults)} like it)" if len(faults) > 1 else ""
        raise UserError(
            f"{label}: {printable(where[:SHOWN])} {printable(what[: 2 * SHOWN])}{more}",
            "download or make the model again, in bfloat16 or with its scales",
        )
