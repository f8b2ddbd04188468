"""Tensors in the files of a model folder, read and written without ever holding a file.

    for name, tensor in stored_in(folder).items():
        tensor.dtype, tensor.shape, tensor.values()
    rewrite(source, target, lambda tensor: "BF16")     the same file in another type, one part at a time

The library maps a file into memory, and what is read of it stays there: 2 GB of weights that are only looked at took
3 GB. Here a read is a read, of as many rows as the caller wants.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from nemotron_shared.models.scales import Tensor
from nemotron_shared.models.weights import INDICES, header_of, require_all, weight_files
from nemotron_shared.system.atomic import open_atomic, read_json, write_text
from nemotron_shared.system.errors import UserError

TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I64": torch.int64, "I32": torch.int32,
    "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
IN_FLOAT32 = re.compile(r"(^|\.)(A_log|D|e_score_correction_bias|expert_bias)$")
"""Names of tensors that stay in float32 if the others get another type: decay rates and skips of Mamba, which mamba_ssm
keeps so, and corrections of routers (in LFM2 `expert_bias`), whose steps are smaller than bfloat16 tells apart."""
AT_ONCE = 2**20
"""Values that are in memory together."""


@dataclass(frozen=True)
class Stored(Tensor):
    """One tensor of a file, and how to read it."""

    name: str
    file: Path

    @property
    def kind(self) -> torch.dtype:
        """The type as torch calls it.

        Raises:
            UserError: torch has no such type.
        """
        if self.dtype not in TYPES:
            what = f"{self.file}: {self.name} is stored as {self.dtype}, which cannot be read here"
            raise UserError(what, "give the model in bfloat16 or float32")
        return TYPES[self.dtype]

    def values(self, rows: slice = slice(None)) -> torch.Tensor:
        """The tensor, or some rows of its first dimension."""
        first, last, _ = rows.indices(self.shape[0]) if self.shape else (0, 1, 1)
        shape = (last - first, *self.shape[1:]) if self.shape else ()
        row = math.prod(self.shape[1:]) * self.kind.itemsize
        read = torch.empty((last - first) * row, dtype=torch.uint8)
        with self.file.open("rb", buffering=0) as stream:
            stream.seek(self.start + first * row)
            view = memoryview(read.numpy())
            while view:  # one read gives 2 GB at most
                got = stream.readinto(view)
                if not got:
                    raise UserError(f"{self.file}: cut off within {self.name}", "download or copy the file again")
                view = view[got:]
        return read.view(self.kind).reshape(shape)

    def parts(self) -> Iterator[torch.Tensor]:
        """The tensor in runs of rows, each of about `AT_ONCE` values."""
        rows = max(1, AT_ONCE // max(1, math.prod(self.shape[1:])))
        for first in range(0, self.shape[0] if self.shape else 1, rows):
            yield self.values(slice(first, first + rows))


def stored(file: Path) -> dict[str, Stored]:
    """The tensors of one safetensors file, in the order of their bytes.

    Raises:
        UserError: it is damaged.
    """
    placed = sorted(header_of(str(file), file).items(), key=lambda one: (one[1].start, one[0]))
    return {name: Stored(one.dtype, one.shape, one.start, name, file) for name, one in placed}


def stored_in(folder: Path) -> dict[str, Stored]:
    """All tensors of a model folder, or of an adapter's, by name.

    Raises:
        UserError: a file is damaged or missing, or the index names other tensors than the files hold.
    """
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    if (folder / "config.json").is_file():
        names = weight_files(str(folder), folder, names)
    files = {name: stored(folder / name) for name in names if name.endswith(".safetensors")}
    if (folder / INDICES[0]).is_file():
        require_all(str(folder), files, folder, {})
    return {name: tensor for tensors in files.values() for name, tensor in tensors.items()}


def most_of(folder: Path) -> str:
    """The type of most bytes in a model folder's files, as safetensors calls it; "" without such files."""
    sizes = Counter[str]()
    for tensor in stored_in(folder).values():
        sizes[tensor.dtype] += size_of(tensor)
    return max(sizes, key=sizes.__getitem__, default="")


def renew_index(folder: Path) -> None:
    """Let a folder's index, if it has one, name the tensors that its files now hold, and their bytes."""
    index = folder / INDICES[0]
    if not index.is_file():
        return
    found = {name: one for file in sorted(folder.glob("*.safetensors")) for name, one in stored(file).items()}
    told = read_json(index).get("metadata", {}) | {"total_size": sum(map(size_of, found.values()))}
    places = {name: one.file.name for name, one in found.items()}
    write_text(index, json.dumps({"metadata": told, "weight_map": places}, indent=2) + "\n")


def rewrite(source: Path, target: Path, type_of: Callable[[Stored], str]) -> int:
    """Write a file's tensors in other types, and return their bytes.

    Raises:
        UserError: a value does not fit into its new type.
    """
    tensors = stored(source)
    types = {name: type_of(tensor) for name, tensor in tensors.items()}
    with safe_open(source, "pt") as file:
        about: dict[str, object] = {"__metadata__": file.metadata() or {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + size_of(tensor, types[name])
        about[name] = {"dtype": types[name], "shape": list(tensor.shape), "data_offsets": [start, end]}
    head = json.dumps(about).encode()
    head += b" " * (-len(head) % 8)  # so that the values begin at a multiple of 8 bytes
    with open_atomic(target) as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for name, tensor in tensors.items():
            for part in tensor.parts():
                cast = part.to(TYPES[types[name]])
                if cast.dtype != part.dtype and not torch.equal(cast.isfinite(), part.isfinite()):
                    what = f"{source}: {name} holds numbers beyond the range of {types[name]}"
                    raise UserError(what, "export as bfloat16 or float32: --dtype bfloat16")
                file.write(memoryview(cast.contiguous().view(-1).view(torch.uint8).numpy()))
    return end


def size_of(tensor: Stored, dtype: str | None = None) -> int:
    """Bytes of a tensor, in its own type or another."""
    return math.prod(tensor.shape) * (TYPES[dtype] if dtype else tensor.kind).itemsize
