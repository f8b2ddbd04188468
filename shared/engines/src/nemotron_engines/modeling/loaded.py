"""Compare a loaded model with its folder, because transformers casts, ties and fills weights silently.

Each published tensor keeps the type that it has in the folder that training began with, not the type of the
computation.
"""

import re
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

from nemotron_engines.modeling.sizes import ANOTHER_MODEL
from nemotron_engines.modeling.stored import IN_FLOAT32, most_of, stored, stored_in
from nemotron_shared.models.folder import all_in, config_of
from nemotron_shared.models.scales import FLOATS, QUANTIZED, require_scales, small_in
from nemotron_shared.system.errors import UserError

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


BLOCKS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
"""Settings that count blocks which predict further tokens."""


def left_behind(path: Path, model: Any) -> str | None:
    """Tensors of a folder that its model's class drops without a word: `28 tensors (model.layers.61)`, or None.

    transformers 5.23 has no place for the blocks of DeepSeek-V3, GLM-4.5, Qwen3-Next and others that predict further
    tokens (`_keys_to_ignore_on_load_unexpected`). The model's config then promises none either.
    """
    patterns = [re.compile(one) for one in model._keys_to_ignore_on_load_unexpected or ()]
    there, own = stored_in(path), {name for name, _ in model.named_parameters()}
    ignored = [name for name in there if name not in own and any(one.search(name) for one in patterns)]
    names = [name for name in ignored if not name.endswith(MASKS)]
    if not any(len(there[name].shape) > 1 for name in names):  # frequencies of older models
        return None
    for key in BLOCKS:
        if getattr(model.config, key, None):
            setattr(model.config, key, 0)
    where = dict.fromkeys(PLACE.findall(name)[0] for name in names)
    return f"{len(names)} tensors ({', '.join([*where][:3])}{', ...' if len(where) > 3 else ''})"


PLACE = re.compile(r".*?\.\d+(?=\.)|[^.]+")
"""The beginning of a name, up to the number of a layer."""


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

    transformers 5.23 skips a method that it does not know, with a warning, and saves its name with the trained weights.

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
    if method is not None and method not in AUTO_QUANTIZER_MAPPING:
        what = f"{path / 'config.json'}: transformers does not know the quant_method {method} of quantization_config"
        raise UserError(what, "remove quantization_config from the file: no weights here are of few bits")


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


# The types of published weights.


TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
STORED = {"F32": torch.float32, "F64": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""Types in files of weights, and those that they are published in."""
IN_LAYER = re.compile(r"(?:.*?\.)??(\d+\..+)")


def type_to_save(wanted: str | None, base: str) -> torch.dtype | None:
    """The dtype to save in; None to keep the weights as they are.

    Args:
        wanted: `engine.save_dtype`. base: the folder that training started from, "" for random weights.
    """
    if wanted is not None or not base:
        return TYPES.get(wanted or "")
    config = config_of(Path(base))
    return STORED.get(most_of(Path(base))) or TYPES.get(config.get("dtype") or config.get("torch_dtype") or "")


def own_types(base: str) -> dict[str, torch.dtype]:
    """Tensors of a folder whose type is another than that of most of its values, by the end of their names.

    Published models keep few tensors in float32 among others in bfloat16, such as Mamba's A_log and D.
    """
    if not base or (most := most_of(Path(base))) not in STORED:
        return {}
    kinds = {end_of(name): STORED[one.dtype] for name, one in stored_in(Path(base)).items() if one.dtype in STORED}
    return {name: kind for name, kind in kinds.items() if kind != STORED[most]}


def end_of(name: str) -> str:
    """A tensor's name from its layer's number on, or its last two parts: before these, classes and files differ."""
    found = IN_LAYER.fullmatch(name)
    return found[1] if found else ".".join(name.split(".")[-2:])


@torch.no_grad()
def change_type(
    model: Any, weights: dict[str, torch.Tensor] | None, kind: torch.dtype, own: Mapping[str, torch.dtype]
) -> None:
    """Convert the weights one by one, so that two complete copies are never in memory.

    Weights that the model's code or a convention keeps in float32 stay in float32.

    Args:
        weights: used instead of the model's own.
        own: types of some tensors, as `own_types` finds them.
    """
    kept = model._keep_in_fp32_modules_strict or ()
    tensors = model.state_dict(keep_vars=True) if weights is None else weights
    for name, tensor in list(tensors.items()):
        if not tensor.is_floating_point():
            continue
        strict = any(part in kept for part in name.split(".")) or IN_FLOAT32.search(name)
        to = torch.float32 if strict else own.get(end_of(name), kind)
        if weights is not None:
            weights[name] = tensor.to(to)
        elif tensor.dtype != to:
            tensor.grad = None
            tensor.data = tensor.data.to(to)


@torch.no_grad()
def restore_float32(path: Path, model: Any) -> None:
    """Give a model that was loaded in fewer bits the folder's float32 values where its code computes in float32.

    transformers casts all tensors to the requested type, except those in `_keep_in_fp32_modules_strict`.
    """
    there = {end_of(name): one for name, one in stored_in(path).items() if one.dtype == "F32"}
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        if IN_FLOAT32.search(name) and tensor.dtype != torch.float32 and end_of(name) in there:
            tensor.data = there[end_of(name)].values().to(tensor.device).view(tensor.shape)
