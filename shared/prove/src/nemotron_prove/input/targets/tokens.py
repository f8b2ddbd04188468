"""Prepared data of training: token shards with their index, blend.json, packed rows."""

import io
import itertools
import json
import struct
from collections.abc import Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from random import Random

import numpy as np

from nemotron_data.formats.bin_idx import IndexedDataset, read_blend, write_index
from nemotron_data.formats.packed import PackedRow, read_packed
from nemotron_engines.rows.token_ids import require_known_ids
from nemotron_prove.input.mutate import mutated
from nemotron_prove.input.second import fault_of, is_number, json_value, require
from nemotron_prove.input.target import Files, Target

IDS = 512
SIZES = {1: (1, False), 2: (1, True), 3: (2, True), 4: (4, True), 5: (8, True), 8: (2, False)}
"""Bytes of a dtype code of Megatron's index, and whether it is signed."""


@cache
def _pair(dtype: str = "<u2") -> tuple[bytes, bytes]:
    """Two documents, as the project writes them."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        write_index(Path(folder) / "a.idx", np.array([3, 2], "<i4"), np.dtype(dtype))
        index = (Path(folder) / "a.idx").read_bytes()
    return np.array([11, 12, 2, 14, 2], dtype).tobytes(), index


def _pairs() -> list[Files]:
    return [{"a.bin": _pair(dtype)[0], "a.idx": _pair(dtype)[1]} for dtype in ("<u2", "<i4")]


def _read_pair(folder: Path, files: Files) -> list[list[int]]:
    dataset = IndexedDataset(folder / "a")
    rows = [dataset[number] for number in range(len(dataset))]
    for row in rows:
        require_known_ids(row, 2**31, "a.bin")  # as training and import do
    return [row.tolist() for row in rows]


def _documents(index: bytes, content: bytes) -> list[list[int]]:
    """The documents of a pair, read by the format's description: header, lengths, pointers, document index."""
    require(len(index) >= 34 and index[:9] == b"MMIDIDX\x00\x00", "no header")
    version, code, sequences, entries = struct.unpack_from("<QBQQ", index, 9)
    require(version == 1, "another version")
    require(code in SIZES, "an unknown dtype code")
    require(len(index) == 34 + 12 * sequences + 8 * entries, "an index of another size")
    lengths = struct.unpack_from(f"<{sequences}i", index, 34)
    pointers = struct.unpack_from(f"<{sequences}q", index, 34 + 4 * sequences)
    documents = struct.unpack_from(f"<{entries}q", index, 34 + 12 * sequences)
    size, signed = SIZES[code]
    at = 0
    for length, pointer in zip(lengths, pointers, strict=True):
        require(length >= 0, "a negative length")
        require(pointer == at, "a pointer that is not where the one before ends")
        at += length * size
    require(at == len(content), "pointers and the .bin disagree")
    require(list(documents) == sorted(documents), "a document index that falls")
    require(documents[:1] == (0,) and documents[-1:] == (sequences,), "a document index that does not span all")
    ids = [int.from_bytes(content[i : i + size], "little", signed=signed) for i in range(0, len(content), size)]
    require(all(number >= 0 for number in ids), "a negative token id")
    ends = np.cumsum([0, *lengths]).tolist()
    return [ids[low:high] for low, high in itertools.pairwise(ends)]


def _pair_fault(files: Files, made: object) -> str | None:
    return fault_of(lambda: require(made == _documents(files["a.idx"], files["a.bin"]), "other tokens than are there"))


def _blends() -> list[Files]:
    binary, index = _pair()
    pairs = {f"{name}{ending}": one for name in ("a", "b/c") for ending, one in ((".bin", binary), (".idx", index))}
    blend = {"train": ["0.7", "a", "0.3", "b/c"], "valid": ["1.0", "a"], "test": None}
    # a pair beside the folder, which a prefix with .. would find
    return [{**{f"in/{name}": one for name, one in pairs.items()}, "d.bin": binary, "d.idx": index,
             "in/blend.json": json.dumps(blend).encode()}]  # fmt: skip


def _in_blend(files: Files, random: Random) -> Files:
    one = {"blend.json": files["in/blend.json"]}
    made = mutated(one, random, ("../d", "b/../a", "./a", "a", "nan", "-1", "1e400", "train", "/dev/shm"))
    return {**{name: one for name, one in files.items() if name != "in/blend.json"},
            **{f"in/{name}": one for name, one in made.items()}}  # fmt: skip


def _read_blend(folder: Path, files: Files) -> dict[str, list[tuple[float, Path]]]:
    return read_blend(folder / "in" / "blend.json")


def _blend_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        value = json_value(files["in/blend.json"], strict=False)  # JSON leaves open which of two equal keys counts
        require(isinstance(value, dict) and set(value) <= {"train", "valid", "test"}, "unknown splits")
        for split in value.values():
            require(split is None or (isinstance(split, list) and len(split) % 2 == 0), "no pairs of weight and prefix")
            for weight, prefix in zip((split or [])[::2], (split or [])[1::2], strict=True):
                require(isinstance(weight, str) or is_number(weight), "a weight that is no number")
                require(isinstance(prefix, str) and prefix, "a prefix that is no text")
                path = PurePosixPath(prefix)
                require(not path.is_absolute() and ".." not in path.parts, "a prefix that leads out of the folder")
                require(all(f"in/{path}{ending}" in files for ending in (".bin", ".idx")), "a pair that is missing")

    return fault_of(read)


@cache
def _packed() -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {"input_ids": [11, 12, 13, 21, 22, 2], "loss_mask": [0, 0, 1, 1, 1, 0], "seq_start_id": [0]},
        {"input_ids": [11, 12, 2, 14, 15, 2], "loss_mask": [0, 1, 0, 1, 1, 0], "seq_start_id": [0, 3]},
    ]
    kinds = {"input_ids": pa.int32(), "loss_mask": pa.uint8(), "seq_start_id": pa.int32()}
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, pa.schema([(name, pa.list_(one)) for name, one in kinds.items()])), sink)
    return sink.getvalue()


def _read_packed(folder: Path, files: Files) -> list[PackedRow]:
    return read_packed(folder / "train.parquet")


def _packed_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        assert isinstance(made, Sequence)
        require(made, "no rows")
        for row in made:
            ids, mask, starts = (np.asarray(one).tolist() for one in (row.input_ids, row.loss_mask, row.seq_start_id))
            require(all(number >= 0 for number in ids), "a negative token id")
            require(len(ids) == len(mask), "a mask of another length")
            require(all(one in (0, 1) for one in mask), "a mask of other values")
            lengths = [high - low for low, high in zip(starts, [*starts[1:], len(ids)], strict=True)]
            require(
                starts[:1] == [0] and min(lengths) >= 2 and sum(lengths) == len(ids), "sequences that do not add up"
            )
            ends = [high - 1 for high in [*starts[1:], len(ids)]]
            require(not any(mask[end] for end in ends), "the last token of a sequence counts")

    return fault_of(read)


TARGETS = (
    Target("bin_idx", "token shards", _pairs, _read_pair, _pair_fault, share=2),
    Target("blend", "blend.json of shards", _blends, _read_blend, _blend_fault, share=1.5, mutate=_in_blend),
    Target("packed", "packed Parquet", lambda: [{"train.parquet": _packed()}], _read_packed, _packed_fault, share=0.3),
)
