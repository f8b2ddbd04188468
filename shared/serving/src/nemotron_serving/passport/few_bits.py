"""Weights of 8 bits in a passport: each is a number only together with its scale, and a list says which they are.

FP8 of ModelOpt and DeepSeek, and INT8 with one scale for a tensor or a row. Packed weights of 4 bits are not compared.
"""

import json
import math
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from nemotron_engines.modeling.stored import Stored
from nemotron_serving.passport.parts import Part, few
from nemotron_shared.models.folder import config_of
from nemotron_shared.models.scales import (
    BESIDE,
    FLOATS,
    QUANTIZED,
    block_of,
    excluded,
    is_named,
    lost_scales,
    scale_of,
    small_in,
    told_otherwise,
)
from nemotron_shared.models.weights import INDICES
from nemotron_shared.system.atomic import read_json, write_text

SCALE = re.compile(r"(weight|input)_(global_)?scale|\.scales$")
"""Names of numbers that weights of few bits are multiplied with."""
TOLD = "hf_quant_config.json"
"""ModelOpt's own file about the same; TensorRT-LLM reads it."""
HEAD = "lm_head"
"""In the list also of a model that has the embeddings in its place."""
LARGEST = 448.0
"""Of F8_E4M3."""
HALF_STEP = {"F8_E4M3": (2**-4, 2**-10), "F8_E5M2": (2**-3, 2**-17), "I8": (0.0, 0.5)}
"""Half of what two neighbouring values are apart: in parts of the value, and at least so many scales."""
SLACK = 1 + 2**-4
"""Programs that divide by the scale in bfloat16 may round to the other neighbour."""


def factor_of(name: str, found: Mapping[str, Stored], block: list[int] | None) -> torch.Tensor | None:
    """What each value is multiplied with, in a shape that fits it; None for packed weights, and without a scale.

    Args:
        block: rows and columns of a scale, where the config names them.
    """
    one, scale = found[name], scale_of(name, found)
    if scale is None or one.dtype not in HALF_STEP:
        return None
    factor = found[scale].values().double()
    if factor.numel() == 1:
        return factor.reshape(())
    for axis, size in enumerate(factor.shape):
        wide = block[axis] if block and len(block) == factor.dim() else math.ceil(one.shape[axis] / size)
        factor = factor.repeat_interleave(wide, axis).narrow(axis, 0, one.shape[axis])
    return factor.reshape(*factor.shape, *[1] * (len(one.shape) - factor.dim()))


def values_of(name: str, found: Mapping[str, Stored], block: list[int] | None) -> torch.Tensor | None:
    """A tensor in float64, multiplied by its scale; None for packed ones, and for those without a scale."""
    if found[name].dtype in FLOATS:
        return found[name].values().double()
    factor = factor_of(name, found, block)
    return None if factor is None else found[name].values().float().double() * factor


def rounding_of(wanted: torch.Tensor, factor: torch.Tensor, dtype: str) -> torch.Tensor:
    """How far each value (any shape) may be off after rounding it to a type of 8 bits with this scale."""
    relative, least = HALF_STEP[dtype]
    return SLACK * torch.maximum(wanted.double().abs() * relative, factor.abs() * least)


def check_scales(found: Mapping[str, Stored], config: Mapping[str, object], tensors: Part, told: Part) -> None:
    """What a folder's own scales and its quantization_config show."""
    for where, what in lost_scales(found, config):
        tensors.find(where, what)
    for where, what in told_otherwise(found, config):
        told.find(where, what)
    if small := small_in(found):
        tensors.facts.append(("of few bits", f"{len(small)} tensors"))
    for name, one in found.items():
        if one.dtype not in FLOATS or not SCALE.search(name):
            continue
        values = one.values().double()
        if not bool(values.any()):
            tensors.find(name, "is all zero")
        elif bool((values < 0).any()):
            tensors.find(name, "holds negative scales")
        elif not bool(values.isfinite().all()):
            tensors.find(name, "holds NaN or infinity")


def check_list(found: Mapping[str, Stored], folder: Path, part: Part) -> None:
    """Whether a list of excluded modules names the matrices that have more than 8 bits, and no others."""
    config = config_of(folder)
    told = config.get(QUANTIZED[0])
    if not isinstance(told, dict) or told.get("quant_method") != "modelopt":
        return
    key, entries = excluded(told)
    where = f"config.json: {QUANTIZED[0]}.{key}"
    modules = {name.removesuffix(".weight"): one for name, one in found.items() if name.endswith(".weight")}
    for entry in entries:
        if entry.isprintable() and entry != HEAD and not any(is_named(module, entry) for module in modules):
            part.find(where, f"names {entry}, which is not a module of the model")
    for module, one in modules.items():
        matrix = len(one.shape) == 2 and one.dtype in FLOATS and "embed" not in module
        if matrix and not any(is_named(module, entry) for entry in entries):
            part.find(f"{module}.weight", f"is stored as {one.dtype}, and {key} does not name it")
    own = read_json(folder / TOLD).get("quantization", {}) if (folder / TOLD).is_file() else None
    if own is not None and own.get("exclude_modules") != entries:
        part.find(f"{TOLD}: exclude_modules", f"is another list than {key} in config.json")
    if own is not None and own.get("quant_algo") != told.get("quant_algo"):
        part.find(f"{TOLD}: quant_algo", f"is {own.get('quant_algo')}, in config.json {told.get('quant_algo')}")
    part.facts.append((where, f"{len(entries)} modules: {few(entries)}"))


def multiplied(found: Mapping[str, Stored], config: Mapping[str, object]) -> dict[str, torch.Tensor]:
    """The weights of a folder, times their scales; without packed ones."""
    made = {name: values_of(name, found, block_of(config)) for name in found if not BESIDE.fullmatch(name)}
    return {name: values.float() for name, values in made.items() if values is not None}


def rounded(source: Mapping[str, Stored], found: Mapping[str, Stored]) -> dict[str, torch.Tensor]:
    """The weights of a model, rounded to the types of a folder; to FP8 with the scale of a tensor's largest value."""
    made = {name: one.values().float() for name, one in source.items()}
    for name, values in made.items():
        step = values.abs().max() / LARGEST if found[name].dtype == "F8_E4M3" else torch.tensor(1.0)
        made[name] = (values / step).to(found[name].kind).float() * step
    return made


def plain(folder: Path, target: Path, weights: Mapping[str, torch.Tensor]) -> Path:
    """Write a folder that transformers loads: the settings and tokenizer of one, with weights in float32."""
    target.mkdir()
    for file in folder.iterdir():
        if file.suffix in (".json", ".jinja", ".model") and file.name not in (*INDICES, TOLD):
            shutil.copyfile(file, target / file.name)
    config = {key: value for key, value in config_of(folder).items() if key not in QUANTIZED} | {"dtype": "float32"}
    write_text(target / "config.json", json.dumps(config))
    save_file(dict(weights), target / "model.safetensors", metadata={"format": "pt"})
    return target
