"""What the library has loaded, against what the folder holds: it casts, ties and fills up without a word."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from nemotron_engines.modeling.sizes import ANOTHER_MODEL
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.models.code import all_in, config_of

NUMBERS = ("F", "BF")
"""How the dtypes begin that can be cast to a model's own; the whole numbers of quantized weights need their scales."""
MASKS = (".bias", ".masked_bias", ".position_ids")
"""Names under which older models store masks and positions, which are no weights."""
QUANTIZED = ("quantization_config", "compression_config")


def require_same_tensors(path: Path, found: Mapping[str, Any]) -> None:
    """Refuse weights of another architecture.

    Whatever the folder lacks would be trained from random values, and what it has too much would be dropped.

    Args:
        found: what the library tells of its loading.

    Raises:
        UserError: naming the first tensors.
    """
    shapes = [f"{name} {list(stored)}, not {list(wanted)}" for name, stored, wanted in found["mismatched_keys"]]
    differences = {
        "missing": sorted(found["missing_keys"]),
        "unknown": sorted(found["unexpected_keys"]),
        "of another shape": sorted(shapes),
    }
    counts = [
        f"{len(names)} tensors {what}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
        for what, names in differences.items()
        if names
    ]
    if counts:
        raise UserError(f"{path}: the weights are not those of its config.json: {'; '.join(counts)}", ANOTHER_MODEL)


def require_numbers(path: Path, model: Any) -> None:
    """Refuse weights that are not finite, or that were cast from what is no floating point number.

    Raises:
        UserError: naming the tensor.
    """
    config = config_of(path)
    if not any(key in part for part in all_in(config) if isinstance(part, dict) for key in QUANTIZED):
        for file in sorted(path.glob("*.safetensors")):
            _require_floats(file)
    for name, parameter in model.named_parameters():
        if parameter.device.type != "meta" and not bool(torch.isfinite(parameter).all()):
            raise UserError(f"{path}: its weights are damaged: {name} holds NaN or infinity", ANOTHER_MODEL)


def _require_floats(file: Path) -> None:
    with safe_open(file, "pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118
            kind = tensors.get_slice(name).get_dtype()
            if not kind.startswith(NUMBERS) and not name.endswith(MASKS):
                what = f"{file}: {name} is stored as {kind}, and config.json has no quantization_config"
                raise UserError(what, "give the model in bfloat16 or float32")


def require_one_head(path: Path, model: Any) -> None:
    """Refuse a head of its own beside `tie_word_embeddings`.

    Here it would answer and be trained; in other programs the embeddings would answer in its place.

    Raises:
        UserError: naming the file.
    """
    if not getattr(model.config.get_text_config(), "tie_word_embeddings", False):
        return
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and head.weight is not embeddings.weight:
        what = f"{path / 'config.json'}: tie_word_embeddings is true, and the weights hold a head of their own"
        raise UserError(what, "set it to false, so that every program uses the stored head")
