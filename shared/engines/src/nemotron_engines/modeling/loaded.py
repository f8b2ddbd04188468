"""Compare a loaded model with its folder, because transformers casts, ties and fills weights silently.

Published weights keep the type of the model that training began with, whatever type was computed in.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

from nemotron_engines.modeling.sizes import ANOTHER_MODEL
from nemotron_engines.modeling.stored import stored, stored_in
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.models.folder import all_in, config_of
from nemotron_shared.runtime.models.scales import FLOATS, QUANTIZED, require_scales, small_in

CAN_BE_NAN = (*FLOATS, "F8_E4M3", "F8_E5M2")
"""Dtypes that can hold NaN or infinity."""
MASKS = (".bias", ".masked_bias", ".position_ids")
"""Names of masks and positions in older models, which are not weights."""


def require_same_tensors(path: Path, found: Mapping[str, Any]) -> None:
    """Refuse weights of another architecture.

    Missing tensors would start from random values, and extra tensors would be dropped.

    Args:
        found: the library's loading report.

    Raises:
        UserError: tensors differ; the message names the first ones.
    """
    differences = {
        "missing": sorted(found["missing_keys"]),
        "unknown": sorted(found["unexpected_keys"]),
        "of another shape": sorted(
            f"{name} {list(stored)}, not {list(wanted)}" for name, stored, wanted in found["mismatched_keys"]
        ),
    }
    counts = [
        f"{len(names)} tensors {what}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
        for what, names in differences.items()
        if names
    ]
    if counts:
        raise UserError(f"{path}: the weights are not those of its config.json: {'; '.join(counts)}", ANOTHER_MODEL)


def require_numbers(path: Path, model: Any) -> None:
    """Refuse weights that are not finite, or that were cast from a dtype other than floating point.

    Raises:
        UserError: a bad tensor; the message names it.
    """
    if not is_quantized(config_of(path)):
        for file in sorted(path.glob("*.safetensors")):
            _require_floats(file)
    for name, parameter in model.named_parameters():
        if parameter.device.type != "meta" and not bool(torch.isfinite(parameter).all()):
            raise UserError(f"{path}: its weights are damaged: {name} holds NaN or infinity", ANOTHER_MODEL)


def is_quantized(config: dict[str, Any]) -> bool:
    """Whether a config declares quantized weights, for the whole model or a part."""
    return any(key in part for part in all_in(config) if isinstance(part, dict) for key in QUANTIZED)


def _require_floats(file: Path) -> None:
    for name, tensor in stored(file).items():
        if tensor.dtype not in FLOATS and not name.endswith(MASKS):
            what = f"{file}: {name} is stored as {tensor.dtype}, but config.json has no quantization_config"
            raise UserError(what, "use the model in bfloat16 or float32")


def require_kept_scales(path: Path) -> None:
    """Refuse weights of few bits whose scales are lost, or would be: the library drops those that it does not know.

    Raises:
        UserError: naming the tensor, or the method.
    """
    config, tensors = config_of(path), stored_in(path)
    require_scales(str(path), tensors, config)
    small = small_in(tensors)
    told = config.get("quantization_config")
    method = told.get("quant_method") if isinstance(told, dict) else None
    if small and method not in AUTO_QUANTIZER_MAPPING:
        what = f"{path}: transformers would drop the scales of {len(small)} tensors of few bits (quant_method {method})"
        raise UserError(what, "give the model in bfloat16 or float32")


def require_finite(file: Path) -> None:
    """Refuse a file with weights that are not finite, also as float32; only part of a tensor is in memory at a time.

    Raises:
        UserError: a bad tensor; the message names it and its file.
    """
    for name, tensor in stored(file).items():
        if tensor.dtype not in CAN_BE_NAN or all(is_finite(part.float()) for part in tensor.parts()):
            continue
        large = all(map(is_finite, tensor.parts()))
        what = "numbers beyond the range of float32" if large else "NaN or infinity"
        raise UserError(f"{file}: its weights are damaged: {name} holds {what}", ANOTHER_MODEL)


def is_finite(part: torch.Tensor) -> bool:
    """Whether all values are; torch cannot say so of those of 8 bits."""
    return bool(torch.isfinite(part.float() if part.itemsize == 1 else part).all())


def require_one_head(path: Path, model: Any) -> None:
    """Refuse a separate head together with `tie_word_embeddings`.

    Here the head would be used and trained; other programs would use the embeddings instead.

    Raises:
        UserError: there is a separate head; the message names the config file.
    """
    if not getattr(model.config.get_text_config(), "tie_word_embeddings", False):
        return
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None or head.weight is embeddings.weight:
        return
    # without values, the library cannot see that both are stored and equal
    if head.weight.device.type != "meta" or not _are_stored_alike(path, model, head.weight, embeddings.weight):
        what = f"{path / 'config.json'}: tie_word_embeddings is true, but the weights contain a separate head"
        raise UserError(what, "set it to false, so that every program uses the stored head")


def _are_stored_alike(path: Path, model: Any, *parameters: torch.Tensor) -> bool:
    """Whether two parameters have the same values in the files, under names that end as the model's own."""
    ends = [
        tuple(name.split(".")[-2:]) for name, value in model.named_parameters() if any(value is x for x in parameters)
    ]
    found = [tensor for name, tensor in stored_in(path).items() if tuple(name.split(".")[-2:]) in ends]
    if len(found) != len(parameters) or found[0].shape != found[1].shape:
        return False
    return all(map(torch.equal, found[0].parts(), found[1].parts()))


# The type of published weights.


TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def type_to_save(wanted: str | None, base: str) -> torch.dtype | None:
    """The dtype to save in; None to keep the weights as they are.

    Args:
        wanted: `engine.save_dtype`. base: the folder that training started from, "" for random weights.
    """
    config = config_of(Path(base)) if wanted is None and base else {}
    return TYPES.get(wanted or config.get("dtype") or config.get("torch_dtype"))


@torch.no_grad()
def change_type(model: Any, weights: dict[str, torch.Tensor] | None, kind: torch.dtype) -> None:
    """Convert the weights one by one, so that two complete copies are never in memory.

    Weights that the model's code keeps in float32 stay in float32.

    Args:
        weights: used instead of the model's own.
    """
    kept = model._keep_in_fp32_modules_strict or ()
    tensors = model.state_dict(keep_vars=True) if weights is None else weights
    for name, tensor in list(tensors.items()):
        if not tensor.is_floating_point() or any(part in kept for part in name.split(".")):
            continue
        if weights is not None:
            weights[name] = tensor.to(kind)
        else:
            tensor.grad = None
            tensor.data = tensor.data.to(kind)
