"""Tokenized documents in Megatron-LM's bin/idx format, and the blend.json that lists them.

`<prefix>.bin` is the concatenated token ids. `<prefix>.idx`, all little-endian:

    "MMIDIDX\\0\\0" | uint64 version = 1 | uint8 dtype code | uint64 sequences S | uint64 documents + 1
    int32[S] tokens of each sequence | int64[S] its first byte in .bin | int64[documents + 1] sequences before each

We write one sequence per document. An end-of-document token, if wanted, is added by the caller. Files are written with
direct I/O in the background: in the page cache they would cost a copy, and evict files that are in use.
"""

import errno
import hashlib
import math
import os
import shutil
import struct
from array import array
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from mmap import mmap
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np

from nemotron_data.split import SPLITS
from nemotron_shared.system.atomic import open_atomic, read_json, write_json
from nemotron_shared.system.errors import UserError, did_you_mean

BLOCK_BYTES = 1 << 20
"""Size of one write; a multiple of all alignments that direct writes require."""


class BulkFile:
    """Append to an open file that nothing else writes to.

    with open_atomic(path) as file, BulkFile(file) as bulk:
        bulk.write(array)
        digest = bulk.finish()

    If the system and file system support it, a thread writes blocks directly (`O_DIRECT`), so that a slow disk does not
    stall the caller. Files smaller than one block, and the rest after the last block, go through the page cache.
    """

    def __init__(self, file: IO[Any]) -> None:
        self._descriptor = file.fileno()
        # mmap is page-aligned, as direct writes require; one block is filled while the other is written
        self._block, self._other = memoryview(mmap(-1, BLOCK_BYTES)), memoryview(mmap(-1, BLOCK_BYTES))
        self._filled = 0
        self._digest = hashlib.sha256()
        self._direct = False
        self._thread: ThreadPoolExecutor | None = None  # started with the first full block
        self._writing: Future[None] | None = None

    def write(self, data: bytes | memoryview) -> None:
        """Append the bytes of a contiguous buffer. A disk error may be raised by a later call."""
        left = memoryview(data).cast("B")
        while left:
            piece = left[: BLOCK_BYTES - self._filled]
            left = left[len(piece) :]
            self._block[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)
            if self._filled == BLOCK_BYTES:
                self._hand_over()

    def finish(self) -> str:
        """Write the rest; returns the SHA-256 of everything, in hex. The caller must sync."""
        self._wait()
        self._set_direct(False)
        self._write_whole(self._block[: self._filled])
        self._filled = 0
        return self._digest.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.shutdown()  # before the file is closed

    def _hand_over(self) -> None:
        self._wait()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1)
            self._set_direct(True)
        self._writing = self._thread.submit(self._write_whole, self._block)
        self._block, self._other = self._other, self._block
        self._filled = 0

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()

    def _write_whole(self, left: memoryview) -> None:
        self._digest.update(left)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._set_direct(False)  # another alignment than ours, or a part of a block was already written

    def _set_direct(self, wanted: bool) -> None:
        """Turn direct I/O on or off; it stays off if unsupported."""
        flag = getattr(os, "O_DIRECT", 0)
        if not flag or wanted == self._direct:
            return
        import fcntl

        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | flag if wanted else flags & ~flag)
        except OSError:
            return
        self._direct = wanted


MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
DTYPES = {code: np.dtype(name) for code, name in ((1, "u1"), (2, "i1"), (3, "<i2"), (4, "<i4"), (5, "<i8"), (8, "<u2"))}
UINT16_VOCABULARY = 65_500
COPY_BYTES = 16 << 20
LONGEST_NAME = 250
"""Maximum bytes of a name, leaving room for a suffix."""
IDS_AT_ONCE = 1 << 24
REBUILD = "run data preparation again with --force"


def _beside(prefix: Path, ending: str) -> Path:
    return prefix.with_name(prefix.name + ending)  # not with_suffix: a prefix may contain a dot


def token_dtype(vocab_size: int) -> np.dtype:
    """uint16 for vocabularies under 65,500, else int32: the rule of Megatron's readers and writers."""
    return np.dtype("<u2" if vocab_size < UINT16_VOCABULARY else "<i4")


class IndexedDatasetWriter:
    """Write `<prefix>.bin` and `<prefix>.idx`; both appear when the block ends without an error.

    with IndexedDatasetWriter(folder / "train_text_document", vocab_size=tokenizer.get_vocab_size()) as writer:
        writer.add_documents(np.array([11, 12, 2, 14, 2]), lengths=np.array([3, 2]))

    Attributes:
        tokens: number of tokens written so far.
        bin_sha256: hex digest of the finished .bin.
    """

    def __init__(self, prefix: Path, vocab_size: int) -> None:
        self.prefix = prefix
        self.vocab_size = vocab_size
        self.dtype = token_dtype(vocab_size)
        self._lengths = array("i")
        self.tokens = 0
        self.bin_sha256: str | None = None
        self._bin: BulkFile | None = None
        self._stack = ExitStack()

    @property
    def documents(self) -> int:
        """Number of documents written so far."""
        return len(self._lengths)

    def add_documents(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        """Append documents concatenated in `ids` (1-D), of at least one token each; ids are below `vocab_size`."""
        if self._bin is None:
            raise ValueError("add_documents() outside the with block")
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise ValueError(f"documents are a 1-D array of integers, not {ids.dtype}{list(ids.shape)}")
        if ids.size != lengths.sum() or (lengths < 1).any():
            raise ValueError("a document is not empty, and the lengths add up to the ids")
        if ids.size and (ids.min() < 0 or ids.max() >= self.vocab_size):
            raise UserError(
                f"{self.prefix}: token ids {ids.min()} to {ids.max()} after document {len(self._lengths)} lie "
                f"outside the vocabulary of {self.vocab_size}",
                "prepare the data with the tokenizer whose vocabulary size is given",
            )
        # uint32 and int32 ids below 2^31 have the same bytes, so most are not copied
        same = ids.dtype.itemsize == self.dtype.itemsize
        stored = np.ascontiguousarray(ids).view(self.dtype) if same else ids.astype(self.dtype)
        self._bin.write(stored.data)
        self._lengths.frombytes(np.ascontiguousarray(lengths, dtype="<i4").tobytes())
        self.tokens += ids.size

    def __enter__(self) -> Self:
        file = self._stack.enter_context(open_atomic(_beside(self.prefix, ".bin")))
        self._bin = self._stack.enter_context(BulkFile(file))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        written, self._bin = self._bin, None
        if error is not None or written is None:
            self._stack.__exit__(kind, error, trace)
            return
        with self._stack:
            if not self._lengths:
                raise UserError(f"{self.prefix}: no document to write", "add documents, or enlarge this split")
            self.bin_sha256 = written.finish()
            # a kill between the two renames must not leave an old index next to new tokens
            _beside(self.prefix, ".idx").unlink(missing_ok=True)
        write_index(_beside(self.prefix, ".idx"), np.array(self._lengths, dtype="<i4"), self.dtype)


def write_index(path: Path, lengths: np.ndarray, dtype: np.dtype) -> None:
    """Write the .idx of documents of one sequence each, given their lengths and the dtype of the .bin."""
    ends = np.cumsum(lengths, dtype="<i8") * dtype.itemsize
    code = next(code for code, known in DTYPES.items() if known == dtype)
    with open_atomic(path) as file:
        file.write(HEADER.pack(MAGIC, 1, code, len(lengths), len(lengths) + 1))
        file.write(lengths.astype("<i4").tobytes())
        file.write(np.concatenate([np.zeros(1, "<i8"), ends[:-1]]).tobytes())
        file.write(np.arange(len(lengths) + 1, dtype="<i8").tobytes())


class IndexedDataset:
    """Read `<prefix>.bin` and `.idx`: `len` is the number of sequences, `[i]` the token ids of one, not copied.

    Raises `UserError` if a file is missing or truncated, or if the two do not match.
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self.dtype, self.lengths, self._starts = _read_index(_beside(prefix, ".idx"))
        bin_path = _beside(prefix, ".bin")
        needed = self.num_tokens * self.dtype.itemsize
        found = bin_path.stat().st_size if bin_path.is_file() else -1
        if found != needed:
            raise _corrupt(bin_path, f"{found} bytes where the index needs {needed}" if found >= 0 else "missing")
        # A plain array, because slices of a memmap are again memmaps, which are slow.
        self._ids = np.asarray(np.memmap(bin_path, self.dtype, mode="r")) if needed else np.empty(0, self.dtype)

    @property
    def num_tokens(self) -> int:
        """Total number of tokens."""
        return int(self.lengths.sum(dtype=np.int64))

    def id_range(self) -> tuple[int, int]:
        """Lowest and highest token id."""
        blocks = [self._ids[at : at + IDS_AT_ONCE] for at in range(0, len(self._ids), IDS_AT_ONCE)]
        return min((int(block.min()) for block in blocks), default=0), max(
            (int(block.max()) for block in blocks), default=0
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> np.ndarray:
        start = int(self._starts[index]) // self.dtype.itemsize
        return self._ids[start : start + int(self.lengths[index])]


def merge_pairs(prefixes: Sequence[Path], target: Path) -> None:
    """Write the sequences of all pairs, in order, as one pair at the prefix `target`, for readers that want only one.

    Raises:
        UserError: a pair is missing or damaged, or its dtype differs from the first one's.
    """
    pairs = [IndexedDataset(prefix) for prefix in prefixes]
    if not pairs:
        raise ValueError("nothing to merge")
    for other in pairs:
        if other.dtype != pairs[0].dtype:
            what = f"{other.prefix}: {other.dtype} ids, not {pairs[0].dtype} like the others"
            raise UserError(what, "merge only what was made with one tokenizer")
    index = _beside(target, ".idx")
    index.unlink(missing_ok=True)
    with open_atomic(_beside(target, ".bin")) as merged:
        for prefix in prefixes:
            with _beside(prefix, ".bin").open("rb") as source:
                shutil.copyfileobj(source, merged, COPY_BYTES)
    write_index(index, np.concatenate([pair.lengths for pair in pairs]), pairs[0].dtype)


def _read_index(path: Path) -> tuple[np.dtype, np.ndarray, np.ndarray]:
    """dtype of the tokens, int32 lengths and int64 byte offsets; everything is validated, also the document index."""
    if not path.is_file():
        raise UserError(f"{path}: no such file", "give the prefix, without .bin or .idx")
    content = path.read_bytes()
    if len(content) < HEADER.size:
        raise _corrupt(path, f"{len(content)} bytes, not even a header")
    magic, version, code, sequences, entries = HEADER.unpack_from(content)
    if magic != MAGIC or version != 1 or code not in DTYPES:
        raise _corrupt(path, f"magic {magic!r}, version {version}, dtype code {code}")
    needed = HEADER.size + 12 * sequences + 8 * entries
    if len(content) != needed:
        raise _corrupt(path, f"{len(content)} bytes where its header needs {needed}")
    lengths = np.frombuffer(content, "<i4", sequences, HEADER.size)
    starts = np.frombuffer(content, "<i8", sequences, HEADER.size + 4 * sequences)
    documents = np.frombuffer(content, "<i8", entries, HEADER.size + 12 * sequences)
    ends = np.cumsum(lengths, dtype=np.int64) * DTYPES[code].itemsize
    if (lengths < 0).any() or not np.array_equal(starts[1:], ends[:-1]) or (starts[:1] != 0).any():
        raise _corrupt(path, "lengths and offsets disagree")
    if entries < 1 or documents[0] != 0 or documents[-1] != sequences or (np.diff(documents) < 0).any():
        raise _corrupt(path, "the document index does not run from 0 to the number of sequences")
    return DTYPES[code], lengths, starts


def _corrupt(path: Path, what: str) -> UserError:
    return UserError(f"{path}: corrupt: {what}", REBUILD)


def write_blend(path: Path, blend: Mapping[str, Sequence[tuple[float, str]]]) -> None:
    """Write the blend.json of Megatron-Bridge, {"train": ["0.7", "web_000000", ...], "valid": [...], "test": null}.

    Prefixes are relative to the folder of `path`, so that the folder can be moved; use `read_blend` to get absolute
    ones for Megatron. Raises `UserError` for a bad weight and for a pair that does not exist.
    """
    for split, entries in blend.items():
        if split not in SPLITS:
            raise UserError(f"{path}: unknown split '{split}'", did_you_mean(split, SPLITS, "train, valid or test"))
        for weight, prefix in entries:
            if Path(prefix).is_absolute():
                raise UserError(f"{path}: '{prefix}' is absolute", f"write it relative to {path.parent}")
            _check_blend_entry(path, split, weight, path.parent / prefix)
    flat = {
        split: [text for weight, prefix in blend[split] for text in (repr(float(weight)), str(prefix))]
        if blend.get(split)
        else None
        for split in SPLITS
    }
    write_json(path, flat)


def read_blend(path: Path) -> dict[str, list[tuple[float, Path]]]:
    """Read (weight, complete prefix) pairs of each split from a nonempty blend.json."""
    content = read_json(path)
    if not isinstance(content, dict) or not set(content) <= set(SPLITS):
        raise UserError(f"{path}: needs 'train', 'valid' and 'test'", REBUILD)
    blend: dict[str, list[tuple[float, Path]]] = {}
    for split, flat in content.items():
        if flat is None or flat == []:
            continue
        if not isinstance(flat, list) or len(flat) % 2:
            raise UserError(f"{path}: '{split}' must alternate weight and prefix", REBUILD)
        blend[split] = []
        for weight, prefix in zip(flat[::2], flat[1::2], strict=True):
            try:
                entry = float(weight), path.parent / prefix
            except (TypeError, ValueError, OverflowError) as error:
                what = f"{path}: '{split}': {str(weight)[:80]}, {str(prefix)[:80]} is not a weight and a prefix"
                raise UserError(what, REBUILD) from error
            if isinstance(weight, bool) or not _lies_below(prefix):
                what = f"{path}: '{split}': {str(prefix)[:80]!r} is not a prefix below {path.parent}"
                raise UserError(what, "put the pair into the folder, and name it relative to that")
            _check_blend_entry(path, split, *entry)
            blend[split].append(entry)
        if sum(weight for weight, _ in blend[split]) == math.inf:
            raise UserError(f"{path}: '{split}': its weights are too large to be added", "write smaller ones")
    return blend


def data_set_of(relative: str, split: str) -> str:
    """`train/web/shard_000003` and `train/web` are files of the data set `web`."""
    folders = relative.split("/")
    if folders[0] == split and len(folders) > 1:
        folders = folders[1:]
    return "/".join(folders[:-1] if len(folders) > 1 and folders[-1].startswith("shard_") else folders)


def _lies_below(prefix: str) -> bool:
    """Whether a prefix is inside the folder of its blend.json and is a possible file name."""
    parts = Path(prefix).parts
    return bool(parts) and not Path(prefix).is_absolute() and ".." not in parts and "\0" not in prefix and (
        max(len(part.encode("utf-8", "replace")) for part in parts) <= LONGEST_NAME
    )  # fmt: skip


def _check_blend_entry(path: Path, split: str, weight: float, prefix: Path) -> None:
    if not 0 < weight < math.inf:
        raise UserError(f"{path}: '{split}': weight {weight} of {prefix.name} is not a positive number", REBUILD)
    for ending in (".bin", ".idx"):
        if not _beside(prefix, ending).is_file():
            raise UserError(f"{path}: '{split}': {_beside(prefix, ending)} is missing", REBUILD)
