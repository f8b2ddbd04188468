"""The first part of a passport: every tensor of the model is in the export, with its values, and nothing else is.

What differs is named as what it most likely is: a transposed matrix, another expert's values, rows of a query in
another order, a factor. Rounding to a narrower type is allowed, and must give exactly these bits.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch

from nemotron_engines.modeling.stored import Stored, stored_in
from nemotron_serving.layouts import DTYPES
from nemotron_serving.passport.parts import Part, few
from nemotron_serving.passport.targets import Counterpart
from nemotron_shared.models.folder import config_of
from nemotron_shared.models.scales import FLOATS

EXACT = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2")
BOUNDS = {"Q8_0": 4.5e-3, "Q6_K": 2e-2, "Q5_1": 3.5e-2, "Q5_0": 6.5e-2, "Q4_K": 7.5e-2}
"""Largest difference that quantisation makes, in parts of a tensor's largest value. Measured on trained and random
weights: 4.3e-3, 1.5e-2, 2.8e-2, 6.2e-2 and 6.3e-2. Half a step of a block is 1/254 of its largest value in Q8_0; in
Q5_0, a value of the other sign may be off by a whole step, 1/16."""
ROUNDED = 0.1
"""How far weights of 8 bits may be from a multiple of the model's, in parts of their length, to be called one. Measured
of FP8: 0.03."""
EXPONENTIAL = 1e-6
"""The same for -exp(A_log), which two libraries compute."""
MERGED = {"F64": 1e-6, "F32": 1e-6, "BF16": 2**-7, "F16": 2**-10}
"""The same for weights with an adapter added: two steps of the type, for the adapter and the sum are both rounded.
Measured: 8e-8 in float32, 3.5e-3 in bfloat16."""
ALIKE = 0.2
"""Part of a difference that may be something else than a multiple of the adapter, if it is to be called one."""
SAME_FACTOR = 0.02
"""How far an adapter's share in the merged weights may be off from its scale, in parts of it."""


def compare(pairs: Iterable[Counterpart], source: Mapping[str, Stored], part: Part) -> None:
    """Add what the tensors show."""
    count, largest, kinds = 0, 0.0, dict[str, int]()
    differing = []
    for pair in pairs:
        count, kinds[pair.dtype] = count + 1, kinds.get(pair.dtype, 0) + 1
        if pair.shapes[0] != pair.shapes[1]:
            turned = pair.shapes[0] == pair.shapes[1][::-1]
            part.find(pair.name, f"has the shape {list(pair.shapes[1])}, not {list(pair.shapes[0])}"
                      + (": it is transposed" if turned else ""))  # fmt: skip
            continue
        off, problem = _distance(pair)
        largest = max(largest, off)
        if problem:
            part.find(pair.name, problem)
        elif off > (_allowed(pair, part) if pair.within is None else 0.0) and not _is_rounding(pair):
            differing.append(pair)
    for pair in differing:
        part.find(pair.name, _named(pair, source))
    part.facts.append(("tensors", f"{count} of {len(source)} compared"))
    part.facts.append(("types", ", ".join(f"{number} {kind}" for kind, number in kinds.items())))
    part.facts.append(("largest difference", f"{largest:.2g} of a tensor's largest value" if largest else "none"))


def _distance(pair: Counterpart) -> tuple[float, str | None]:
    """How far the export's values are from the model's in its type, in parts of the largest; or what is wrong."""
    worst = most = 0.0
    for wanted, found in zip(pair.wanted(), pair.found(), strict=True):
        wanted = _rounded(wanted, pair.dtype)
        if wanted.dtype.itemsize == 1 or not wanted.is_floating_point():
            worst = max(worst, float(not torch.equal(wanted.view(torch.uint8), found.view(torch.uint8))))
            continue
        wanted, found = wanted.double(), found.double()
        if not bool(found.isfinite().all()):
            return 0.0, "holds NaN or infinity"
        most = max(most, float(wanted.abs().max()) if wanted.numel() else 0.0)
        worst = max(worst, float((wanted - found).abs().max()) if wanted.numel() else 0.0)
    return worst / (most or 1.0), None


def _is_rounding(pair: Counterpart) -> bool:
    """Whether no value is further off than rounding it to 8 bits explains."""
    return pair.within is not None and all(
        bool(((wanted - found).abs() <= pair.within(wanted)).all())
        for wanted, found in zip(pair.wanted(), pair.found(), strict=True)
    )


def _rounded(wanted: torch.Tensor, dtype: str) -> torch.Tensor:
    """The model's values as the export's type has them."""
    narrow = {"F16": torch.float16, "BF16": torch.bfloat16}.get(dtype)
    return wanted.to(narrow) if narrow is not None and wanted.is_floating_point() else wanted


def _allowed(pair: Counterpart, part: Part) -> float:
    if pair.dtype in EXACT:
        return EXPONENTIAL if pair.name.endswith("A_log") else 0.0
    if pair.dtype not in BOUNDS:
        note = f"{pair.dtype}: how far its values may be off was never measured, so they are not judged"
        if note not in part.not_run:
            part.not_run.append(note)
    return BOUNDS.get(pair.dtype, float("inf"))


def _named(pair: Counterpart, source: Mapping[str, Stored]) -> str:
    """What the difference most likely is."""
    shape = pair.shapes[0]
    wanted = torch.cat([_rounded(one, pair.dtype).float().flatten() for one in pair.wanted()]).reshape(shape)
    found = torch.cat([one.float().flatten() for one in pair.found()]).reshape(shape)

    def is_found(values: torch.Tensor) -> bool:
        if pair.within is None:
            return torch.equal(_rounded(values, pair.dtype).float(), found)
        return bool(((values - found).abs() <= pair.within(values)).all())

    if not bool(found.any()):
        return "is all zero"
    if turned := transposed(wanted, shape, is_found):
        return turned
    if pair.rotate is not None:
        if torch.equal(pair.rotate(found), wanted):
            return "has the rows of each head in the model's order, and not in the one that llama.cpp rotates"
        if torch.equal(found, pair.rotate(wanted)):
            return "has the rows of each head moved twice"
    for name, one in source.items():
        if name != pair.name and one.shape == shape and one.dtype in FLOATS and is_found(one.values()):
            return f"holds the values of {name}"
    return _changed(wanted, found) if pair.within is None else _scaled(wanted, found, pair.dtype)


def transposed(wanted: torch.Tensor, shape: tuple[int, ...], is_found: Callable[[torch.Tensor], bool]) -> str | None:
    """Whether a matrix of this shape is the right one transposed."""
    if len(shape) != 2 or not is_found(wanted.T.reshape(shape)):
        return None
    return "is transposed" if shape[0] == shape[1] else "is transposed, in the shape of the right one"


def _changed(wanted: torch.Tensor, found: torch.Tensor) -> str:
    """What was done with the right values, if it is something simple."""
    for kind in (torch.bfloat16, torch.float16):
        if torch.equal(found, wanted.to(kind).float()):
            return f"is rounded to {str(kind).removeprefix('torch.')}"
    if found.dim() > 1 and torch.equal(found.unique(dim=0), wanted.unique(dim=0)):
        return "has its rows in another order"
    off = found - wanted
    if torch.allclose(off, more := off.flatten()[0], rtol=1e-4, atol=1e-6):
        return f"is {abs(more):.4g} {'more' if more > 0 else 'less'} everywhere"
    factor = _factor(wanted, found)
    if abs(factor - 1) > 1e-5 and torch.allclose(found, wanted * factor, rtol=1e-4, atol=1e-8):
        return f"is {factor:.4g} times as large"
    return f"differs in {int((off != 0).sum())} of {off.numel()} values, by up to {float(off.abs().max()):.3g}"


def _scaled(wanted: torch.Tensor, found: torch.Tensor, dtype: str) -> str:
    """What differs in weights of 8 bits."""
    factor = _factor(wanted, found)
    if factor > 0 and float((wanted * factor - found).norm()) < ROUNDED * float(found.norm()):
        return f"is {factor:.4g} times as large: its scale is not that of these weights"
    off = (wanted - found).abs()
    return f"is further off than rounding to {dtype} explains, by up to {float(off.max()):.3g}"


def _factor(wanted: torch.Tensor, found: torch.Tensor) -> float:
    """How many times as large the values are as they should be."""
    return float((wanted * found).sum() / (wanted * wanted).sum()) if bool(wanted.any()) else 0.0


def check_types(folder: Path, model: Path | None, part: Part) -> None:
    """Each tensor has the type that config.json tells, its own in the model, or float32, which code may ask for."""
    told, before = _told_type(folder), (_told_type(model) or "float32") if model else None
    tensors, source = stored_in(folder), stored_in(model) if model else {}
    if told not in DTYPES or "quantization_config" in config_of(folder):
        return
    short = DTYPES[told]
    wrong: dict[str, list[str]] = {}
    for name, one in tensors.items():
        own = source[name].dtype if name in source else short
        if one.dtype not in (short, "F32") and one.dtype in FLOATS and (one.dtype != own or short == "F32" != own):
            wrong.setdefault(one.dtype, []).append(name)
    for kind, names in wrong.items():
        part.find(names[0], f"is stored as {kind}, and config.json says {told} (of {len(names)}: {few(names)})")
    if before not in (None, told) and short not in {one.dtype for one in tensors.values()}:
        part.find("config.json: dtype", f"is {told}, and no tensor is stored so: transformers would round them to it")


def _told_type(folder: Path) -> str:
    config = config_of(folder)
    return str(config.get("dtype") or config.get("torch_dtype") or "")


def check_merge(model: Path, base: Path, target: Mapping[str, Stored], adapter: Path, part: Part) -> None:
    """Each weight of the export is the base model's, with its adapter added at the adapter's scale.

    Args:
        model: for the architecture. base: what the adapter was trained on. adapter: as it was trained.
    """
    from nemotron_engines.lora.layout import pairs_in, published  # PEFT takes a second to import

    before, factors = stored_in(base), stored_in(adapter)
    touched, largest = set(), 0.0
    for pair in pairs_in(model, adapter):
        for number, (a, b) in enumerate(pair.factors(factors)):
            name = published(pair.layer, target, number if pair.experts else None)
            if name is None or name not in before or before[name].shape != target[name].shape:
                part.not_run.append(f"{pair.layer}: the base model has no such tensor, so its adapter was not checked")
                break
            touched.add(name)
            off, problem = _merged(before[name], target[name], b @ a, pair.scale)
            largest = max(largest, off)
            if problem:
                part.find(name, problem)
    for name, one in before.items():
        if name not in target or name in touched:
            continue
        kept = one.shape == target[name].shape and all(
            torch.equal(_rounded(old, target[name].dtype).float(), new.float())
            for old, new in zip(one.parts(), target[name].parts(), strict=True)
        )
        if not kept:
            part.find(name, "has no adapter, and is not the base model's")
    told = f"{len(touched)} tensors are the base model's with their adapters; off by {largest:.2g} at most"
    part.facts.append(("merged", told))


def _merged(before: Stored, after: Stored, product: torch.Tensor, scale: float) -> tuple[float, str | None]:
    """How far a merged weight is from its base and its adapter, in parts of its largest value; or what is wrong."""
    old, new = before.values().float(), after.values().float()
    if product.shape != old.shape:
        return 0.0, "has an adapter of another shape"
    off = float((old + scale * product - new).abs().max() / (old + scale * product).abs().max())
    if off <= MERGED.get(after.dtype, MERGED["BF16"]):
        return off, None
    share = float(((new - old) * product).sum() / (product * product).sum()) if bool(product.any()) else 0.0
    is_scaled = bool((new - old - share * product).norm() < ALIKE * (new - old).norm())
    if is_scaled and abs(share / scale - 1) > SAME_FACTOR:
        return off, f"has its adapter at a scale of {share:.3g}, not {scale:.3g} (lora_alpha / r)"
    return off, f"is not its base with its adapter: off by {off:.2g} of its largest value"
