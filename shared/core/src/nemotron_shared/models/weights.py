"""Check that a model's weights are complete from the headers of their files, without reading anything large.

    require_whole("./model", Path("model"), config)     a folder
    require_all("hf://org/name", found, folder, config) tensors in the headers of a model on the hub

Checked are the size each header promises, the tensors in an index, the scales of weights of few bits, and, if the
config gives each layer's kind, that layers of a kind have the same tensors. Pickles are disassembled and never
executed.
"""

import json
import math
import pickletools
import re
import zipfile
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from nemotron_shared.models.scales import Tensor, require_scales
from nemotron_shared.system.atomic import read_json
from nemotron_shared.system.errors import UserError, printable

INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
SINGLES = ("model.safetensors", "pytorch_model.bin")
WEIGHTS = (".safetensors", ".bin")
ADAPTER = "adapter"
"""Folder of a model's adapter, next to the weights it is merged into."""
ADAPTER_WEIGHTS, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
"""PEFT's file names."""
ADAPTER_ROOT = "base_model.model."
"""What the names of an adapter's tensors begin with."""
LARGEST_HEADER = 100_000_000
"""The library's own limit."""
LARGEST_PICKLE = 256 * 2**20
"""Bytes of a pickle's list of tensors: at a few hundred each, hundreds of thousands fit."""
LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""Start of a file written by torch.save before 1.6."""
MOST_DIMENSIONS = 64
"""PyTorch's own limit for a tensor."""
MOST_VALUES = 2**63
"""PyTorch's limit for the values of a tensor, and for its bytes."""
SHOWN = 200
"""Characters of a tensor's name."""
LAYER = re.compile(r"([\w.]+\.layers)\.(\d+)\.(.+)")
AGAIN = "download or copy the file again"
SIZES = {"F64": 8, "I64": 8, "U64": 8, "C64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
         "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1}  # fmt: skip
"""Bytes per value by dtype; sizes of other dtypes are not checked."""
Header = dict[str, Tensor]


def weight_files(label: str, folder: Path, there: Collection[str]) -> list[str]:
    """The weight files: safetensors if there are any, else pickles; empty if there are neither.

    Args:
        folder: has the index, if there is one.
        there: names of all files of the model.

    Raises:
        UserError: it is or contains an adapter; an index is malformed, or names missing files or other weights than
            those next to it.
    """
    if ADAPTER_CONFIG in there:  # transformers would silently apply it to the weights
        what = f"{label}: {ADAPTER_CONFIG} makes it an adapter, and a model is needed"
        remedy = "merge it into its base model (merge_and_unload in PEFT), or take the adapter's files out of a copy"
        raise UserError(what, remedy)
    for index, single in zip(INDICES, SINGLES, strict=True):
        names = [single] if single in there else []
        if (folder / index).is_file():
            named = sorted(set(_weight_map(label, folder / index).values()))
            if names and names != named:  # transformers loads the single file, other programs the index
                what = f"{label}: holds {single}, and {index} names {', '.join(named[:3])}: two sets of weights"
                raise UserError(what, "take one of them out of a copy of the folder")
            names = named
        if absent := [name for name in names if name not in there]:
            what = f"{label}: {index} names files that are not there: {', '.join(absent[:3])}"
            again = f": hf download {label[5:].partition('@')[0]}" if label.startswith("hf://") else ""
            raise UserError(what, f"the folder, the repository, or the hub's cache, is incomplete{again}")
        if names:
            return names
    return []


def require_whole(label: str, folder: Path, config: Mapping[str, Any]) -> None:
    """Check the weights in a folder.

    Raises:
        UserError: a file is truncated or of another kind, or tensors are missing.
    """
    there = {path.name for path in folder.iterdir() if path.is_file()}
    names = weight_files(label, folder, there)
    for name in names or sorted(name for name in there if name.endswith(WEIGHTS[1])):
        if name.endswith(WEIGHTS[1]):
            _require_state_dict(f"{label}: {name}", folder / name)
    safe = [name for name in names or sorted(there) if name.endswith(WEIGHTS[0])]
    found = {name: header_of(f"{label}: {name}", folder / name) for name in safe}
    if names and found:
        require_all(label, found, folder, config)
    require_scales(label, {name: one for tensors in found.values() for name, one in tensors.items()}, config)


def header_of(label: str, file: Path, *, whole: bool = True) -> Header:
    """The tensors of a safetensors file; raises what `header_from` does."""
    with file.open("rb") as stream:
        return header_from(label, stream, file.stat().st_size, whole=whole)


def header_from(label: str, stream: BinaryIO, size: int, *, whole: bool = True) -> Header:
    """The tensors of a safetensors file of this size, from its beginning.

    Args:
        whole: False accepts a file that was truncated after its header.

    Raises:
        UserError: no valid header, or the size does not match it.
    """
    length = int.from_bytes(stream.read(8), "little")
    if size < 8 or length > min(size - 8, LARGEST_HEADER):
        raise UserError(f"{label}: cut off within its header, or no safetensors file", AGAIN)
    content = stream.read(length)
    try:
        header = json.loads(content.decode(), parse_constant=_refused, object_pairs_hook=_once)
        tensors = {name: about for name, about in header.items() if name != "__metadata__"}
        found = {name: _shape(label, name, about["shape"]) for name, about in tensors.items()}
        types = {name: about["dtype"] for name, about in tensors.items()}
        if not all(isinstance(dtype, str) for dtype in types.values()):
            raise ValueError("a type is not text")
        places = {name: _dimensions(about["data_offsets"]) for name, about in tensors.items()}
        end = 0
        for name, (low, high) in sorted(places.items(), key=lambda place: place[1]):
            width = SIZES.get(types[name])
            if low != end or high < low or (width is not None and high - low != width * math.prod(found[name])):
                raise ValueError(f"the place of {name} does not fit its shape")
            end = high
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise UserError(f"{label}: its header cannot be read: it is damaged, or no safetensors file", AGAIN) from error
    if whole and size != 8 + length + end:
        raise UserError(f"{label}: {size} bytes, and its header speaks of {8 + length + end}: it is cut off", AGAIN)
    return {name: Tensor(types[name], shape, 8 + length + places[name][0]) for name, shape in found.items()}


def require_all(label: str, found: Mapping[str, Collection[str]], folder: Path, config: Mapping[str, Any]) -> None:
    """Compare each file's tensors with the index, if there is one, and with the config.

    Raises:
        UserError: tensors are missing, in two files, or not in the index.
    """
    index = folder / INDICES[0]
    promised = _weight_map(label, index) if index.is_file() else None
    absent = []
    if promised is not None:
        absent = [f"{tensor} in {file}" for tensor, file in promised.items() if tensor not in found.get(file, ())]
        _require_no_second(label, found)
    if absent := absent or _absent_from_layers([name for names in found.values() for name in names], config):
        raise UserError(f"{label}: its weights lack {_few(absent)}", "download or save the model again")
    if promised is not None:
        _require_named(label, found, promised)


def _require_no_second(label: str, found: Mapping[str, Collection[str]]) -> None:
    """Refuse a tensor in two files: the library takes the last one, regardless of the index."""
    owners: dict[str, str] = {}
    for file, tensors in found.items():
        for tensor in tensors:
            if (first := owners.setdefault(tensor, file)) != file:
                what = f"{label}: {printable(tensor[:SHOWN])} is in {first} and in {file}"
                raise UserError(what, "download or save the model again")


def _require_named(label: str, found: Mapping[str, Collection[str]], promised: Mapping[str, str]) -> None:
    """Refuse a tensor missing from the index: some programs would load it, others initialise it randomly."""
    more = [f"{tensor} in {file}" for file, tensors in found.items() for tensor in tensors if tensor not in promised]
    if more:
        named = printable(_few([one[:SHOWN] for one in more]))
        raise UserError(f"{label}: {INDICES[0]} does not name {named}", "download or save the model again")


def _few(tensors: list[str]) -> str:
    return ", ".join(tensors[:3]) + (f" and {len(tensors) - 3} more" if len(tensors) > 3 else "")


def _weight_map(label: str, index: Path) -> dict[str, str]:
    values = read_json(index)
    named = values.get("weight_map") if isinstance(values, dict) else None
    if not isinstance(named, dict) or not named or not all(map(_is_weights, named.values())):
        what = f'{label}: {index.name}: not of the form {{"weight_map": {{"tensor": "file"}}}}'
        raise UserError(what, AGAIN)
    return named


def _is_weights(name: Any) -> bool:
    """Whether this is the name of a weight file in the index's folder."""
    return isinstance(name, str) and not {"/", "\\"} & set(name) and name.endswith(WEIGHTS)


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(made := dict(pairs)) != len(pairs):
        raise ValueError("a key that stands twice")
    return made


def _shape(label: str, name: str, values: Any) -> tuple[int, ...]:
    dimensions = _dimensions(values)
    # in this order: multiplying a whole header of large numbers would take days
    if (
        len(dimensions) > MOST_DIMENSIONS
        or max(dimensions, default=0) >= MOST_VALUES
        or math.prod(dimensions) >= MOST_VALUES
    ):
        what = f"its shape has more than {MOST_DIMENSIONS} dimensions or 2^63 values"
        raise UserError(f"{label}: {printable(name[:SHOWN])}: {what}", AGAIN)
    return dimensions


def _dimensions(values: Any) -> tuple[int, ...]:
    if not all(type(value) is int and value >= 0 for value in values):
        raise ValueError("no whole numbers")
    return tuple(values)


def _absent_from_layers(names: list[str], config: Mapping[str, Any]) -> list[str]:
    """Tensors other layers of the same kind have; scales of quantized models, not in every layer, are ignored."""
    kinds = config.get("layers_block_type") or config.get("hybrid_override_pattern")
    if not isinstance(kinds, (list, str)) or not all(isinstance(kind, str) for kind in kinds):
        return []
    stacks: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for layer in filter(None, map(LAYER.fullmatch, names)):
        if not layer[1].startswith("mtp") and "scale" not in layer[3] and int(layer[2]) < len(kinds):
            stacks[layer[1]][int(layer[2])].add(layer[3])
    absent = []
    for stack, layers in stacks.items():
        of_kind: dict[Any, set[str]] = defaultdict(set)
        for number, tensors in layers.items():
            of_kind[kinds[number]] |= tensors
        for number, kind in enumerate(kinds):
            absent += [f"{stack}.{number}.{name}" for name in sorted(of_kind[kind] - layers[number])]
    return absent


def _require_state_dict(label: str, file: Path) -> None:
    """Refuse a file that PyTorch did not save, or without tensors."""
    try:
        with zipfile.ZipFile(file) as archive:
            name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise UserError(f"{label}: compressed, as PyTorch saves nothing", AGAIN)
            if archive.getinfo(name).file_size > LARGEST_PICKLE:
                raise UserError(f"{label}: its {printable(name)} is larger than {LARGEST_PICKLE // 2**20} MB", AGAIN)
            is_one = any("_rebuild_" in str(value) for _, value, _ in pickletools.genops(archive.read(name)))
    except (zipfile.BadZipFile, StopIteration, ValueError, EOFError, OSError):
        with file.open("rb") as stream:
            is_one = stream.read(len(LEGACY)) == LEGACY
    if not is_one:
        raise UserError(f"{label}: no state dict of PyTorch, or cut off", AGAIN)
