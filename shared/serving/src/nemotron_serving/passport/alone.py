"""A folder that another program wrote: checked on its own, or against the base model that it was trained from.

    by_itself(Path("downloaded"))
    by_itself(Path("trained"), Path("base"))

Weights of a training lie near those of its base, so a tensor that is nearer to another one of the base, transposed, of
another scale, or like nothing there, was damaged on the way. Weights of few bits are multiplied by their scales first.
"""

import math
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from statistics import median

import torch

from nemotron_engines.modeling.build import differing_tensors
from nemotron_engines.modeling.loaded import is_finite
from nemotron_engines.modeling.stored import Stored, stored_in
from nemotron_serving.layouts import ROUTER_BIAS
from nemotron_serving.passport import few_bits, settings, tensors
from nemotron_serving.passport.few_bits import SCALE, values_of
from nemotron_serving.passport.parts import CONFIG, TENSORS, Part, Passport, reason
from nemotron_shared.models.folder import config_of, known_types, needs_code, settings_in
from nemotron_shared.models.scales import BESIDE, FLOATS, block_of
from nemotron_shared.models.weights import ADAPTER_CONFIG
from nemotron_shared.system.errors import UserError

NEAR, UNLIKE = 0.8, 0.5
"""Cosine of a trained matrix and its base, above which they are alike, and below which they are not. Measured of the
tiny model: at least 0.88 after SFT, 0.999 after RL."""
SAME_LENGTH = 0.2
"""How far the length of a matrix that is like its base's may be from it, in parts of it."""
LARGE = 256
"""Values from which a matrix is compared with others of the base."""
CANDIDATES = 256
"""Tensors of the base that a matrix is compared with if it is unlike its own."""


def by_itself(folder: Path, base: Path | None = None) -> Passport:
    """What is wrong in a folder that others made: a model, or an adapter of PEFT.

    Args:
        base: what it was trained from.

    Raises:
        UserError: it is neither, or a file of it is damaged.
    """
    parts = [Part(TENSORS), Part(CONFIG)]
    if (folder / ADAPTER_CONFIG).is_file():
        _adapter(folder, base, parts[0])
        found = stored_in(folder)
    elif (folder / "config.json").is_file():
        found = stored_in(folder)
        if not found:
            raise UserError(f"{folder}: holds no safetensors", "give the folder that holds config.json and weights")
        _model(folder, found, parts[0])
        if base is not None:
            _like_base(found, stored_in(base), config_of(folder), parts[0])
        settings.check_folder(folder, parts[1])
    else:
        raise UserError(f"{folder}: holds no config.json", "give a model in Hugging Face's layout")
    if base is not None:
        parts[1].other = settings.BASE
        if (folder / "config.json").is_file():
            settings.compare_folders(base, folder, [], parts[1])
        elif (folder / "tokenizer.json").is_file():
            settings.compare_tokenizers(base, folder, [], parts[1])
    bad = [name for name, one in found.items() if one.dtype[0] in "FB" and not all(map(is_finite, one.parts()))]
    for name in bad:
        parts[0].find(name, "holds NaN or infinity")
    parts[0].facts.append(("tensors", f"{len(found)}, {'all' if not bad else len(found) - len(bad)} finite"))
    return Passport(folder.name, {}, parts)


def _model(folder: Path, found: Mapping[str, Stored], part: Part) -> None:
    """Names, shapes and types against config.json, scales, and matrices of zeros."""
    config = config_of(folder)
    if config.get("model_type") not in known_types() or needs_code(config):
        part.not_run.append("names and shapes of tensors: transformers alone does not know this type of model")
    else:
        try:
            for where, what in differing_tensors(folder):
                part.find(where, what)
        except UserError as error:
            part.find("config.json", reason(error))
    few_bits.check_scales(found, config, part, part)
    tensors.check_types(folder, None, part)
    for name, one in found.items():
        if name.endswith(ROUTER_BIAS) and one.dtype != "F32":
            part.find(name, f"is stored as {one.dtype}, and routers add it in float32")
        is_matrix = len(one.shape) > 1 and not SCALE.search(name)
        if is_matrix and not any(bool(values.float().any()) for values in one.parts()):
            part.find(name, "is all zero")


def _like_base(
    found: Mapping[str, Stored], base: Mapping[str, Stored], config: Mapping[str, object], part: Part
) -> None:
    """Each tensor of the base is there, in its shape, and lies near it."""
    block = block_of(config)
    cosines, unlike, same = dict[str, float](), dict[str, torch.Tensor](), 0
    for name, old in base.items():
        if name in found and old.dtype in FLOATS:
            before, new = old.values().double(), values_of(name, found, block)
            if new is None or new.shape != before.shape:  # its shape is compared with config.json
                continue
            same += found[name].dtype == old.dtype and torch.equal(new, before)
            length = float(before.norm())
            if before.dim() < 2 or before.numel() < LARGE or not length:
                continue
            factor = float((before * new).sum()) / length**2
            cosines[name] = factor * length / (float(new.norm()) or math.inf)
            if cosines[name] > NEAR and abs(factor - 1) > SAME_LENGTH:
                part.find(name, f"is {factor:.3g} times as large as the base model's")
            elif cosines[name] < UNLIKE:
                unlike[name] = new.float()
    usual = median(cosines.values()) if cosines else 0.0
    for name, new in unlike.items():
        if where := _nearer(new, name, base):
            part.find(name, where)
        elif usual > NEAR:
            part.find(name, f"is unlike the base model's: cosine {cosines[name]:.2f}, of most tensors {usual:.2f}")
    names = {name.removesuffix("_packed") for name in found if name in base or not BESIDE.fullmatch(name)}
    for name in (name for name in base if name not in names and not name.startswith("mtp.")):
        part.find(name, "is missing, and the base model has it")
    for name in (name for name in names if name not in base):
        part.find(name, "is there, and not in the base model")
    part.facts.append(("base model", f"{same} of {len(base)} tensors are its own, unchanged"))
    part.facts.append(("near to it", f"median cosine of {len(cosines)} matrices {usual:.4f}"))


def _nearer(new: torch.Tensor, name: str, base: Mapping[str, Stored]) -> str | None:
    """What of the base model a matrix is that is not like its own."""

    def is_near(other: torch.Tensor) -> bool:
        return float((other * new).sum() / (other.norm() * new.norm())) > NEAR

    own = base[name].values().float()
    if turned := tensors.transposed(own, tuple(new.shape), is_near):
        return turned
    layer = re.sub(r"(\.\d+\.).*", r"\1", name)
    others = sorted((one for one in base if one != name), key=lambda one: not one.startswith(layer))
    alike = (one for one in others if base[one].shape == tuple(new.shape) and base[one].dtype in FLOATS)
    for other in islice(alike, CANDIDATES):
        if is_near(base[other].values().float()):
            return f"is like the base model's {other}, and not like its own"
    return None


def _adapter(folder: Path, base: Path | None, part: Part) -> None:
    """Pairs of matrices of the rank that the config says, on layers that the base model has."""
    from nemotron_engines.lora.layout import pairs_in, published  # PEFT takes a second to import

    config, found = settings_in(folder / ADAPTER_CONFIG), stored_in(folder)
    rank, uneven = config.get("r"), bool(config.get("rank_pattern"))
    if not isinstance(rank, int) or not isinstance(config.get("lora_alpha"), int | float):
        part.find(ADAPTER_CONFIG, "does not say r and lora_alpha, so its scale is unknown")
    if not found:
        part.find(ADAPTER_CONFIG, "is alone: the folder has no weights")
    for name, side, rows in _sides(found):
        other = name.replace(f"lora_{side}", f"lora_{'B' if side == 'A' else 'A'}")
        if other not in found:
            part.find(name, f"has no {other.rpartition('.lora_')[2]} beside it")
        elif isinstance(rank, int) and not uneven and rows % rank:
            part.find(name, f"has the rank {rows}, and {ADAPTER_CONFIG} says {rank}")
        elif side == "B" and not any(bool(values.any()) for values in found[name].parts()):
            part.find(name, "is all zero: it adds nothing")
    if base is None:
        part.not_run.append("without its base model, its layers and shapes were not compared: --base MODEL")
        return
    try:
        pairs = pairs_in(base, folder)
    except UserError as error:
        part.find(ADAPTER_CONFIG, reason(error))
        return
    weights = stored_in(base)
    for pair in pairs:
        for number, (a, b) in enumerate(pair.factors(found)):
            name = published(pair.layer, weights, number if pair.experts else None)
            if name is not None and weights[name].shape != (b.shape[0], a.shape[1]):
                wanted = list(weights[name].shape)
                part.find(pair.name, f"adds a matrix of {[b.shape[0], a.shape[1]]}, and the base model's has {wanted}")
                break
    part.facts.append(("adapter", f"rank {rank}, alpha {config.get('lora_alpha')}, on {len(pairs)} layers"))


def _sides(found: Mapping[str, Stored]) -> Iterator[tuple[str, str, int]]:
    """Name, A or B, and rank of each matrix of an adapter."""
    for name, one in found.items():
        side = re.search(r"\.lora_([AB])\.", name)
        if side:
            yield name, side[1], one.shape[0 if side[1] == "A" else -1]
