"""Headers of safetensors files: names and shapes of tensors, believed only where they are such."""

import json
from pathlib import Path
from typing import Any

from nemotron_shared.errors import UserError

LONGEST = 100_000_000
"""Bytes of a header; the safetensors library reads no longer ones either."""
ANOTHER = "download the model again, or give another one"


def read_shapes(path: Path) -> dict[str, list[int]]:
    """The shape of each tensor in a file.

    Raises:
        UserError: it is no safetensors file.
    """
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= min(LONGEST, path.stat().st_size - 8):
            raise UserError(f"{path}: no safetensors file: it has no header, or not the whole of one", ANOTHER)
        content = stream.read(length)
    try:
        header = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: no safetensors file: its header is not JSON: {str(error)[:100]}", ANOTHER) from error
    if not isinstance(header, dict):
        raise UserError(f"{path}: no safetensors file: its header is no mapping of tensors", ANOTHER)
    tensors = {name: about for name, about in header.items() if name != "__metadata__"}
    shapes = {name: about.get("shape") if isinstance(about, dict) else None for name, about in tensors.items()}
    return require_shapes(str(path), shapes)


def require_shapes(label: str, shapes: dict[str, Any]) -> dict[str, list[int]]:
    """The shapes, which are lists of sizes.

    Raises:
        UserError: naming the tensor whose shape is something else.
    """
    for name, shape in shapes.items():
        if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
            raise UserError(f"{label}: tensor '{name[:80]}' has no shape: {str(shape)[:80]}", ANOTHER)
    return shapes


def require_weight_map(label: str, content: Any) -> list[str]:
    """The files that an index of weights names, sorted; each lies beside it.

    Raises:
        UserError: it is no index, or it names what is no file of weights.
    """
    named = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(named, dict) or not named:
        raise UserError(f"{label}: no index of weights: it has no mapping 'weight_map' of tensors to files", ANOTHER)
    for name in named.values():
        if not isinstance(name, str) or "/" in name or "\\" in name or not name.endswith((".safetensors", ".bin")):
            raise UserError(f"{label}: names what is no file of weights beside it: {str(name)[:80]!r}", ANOTHER)
    return sorted(set(named.values()))
