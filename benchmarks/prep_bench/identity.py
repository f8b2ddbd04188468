"""Check that two tools write the same data set. Shards are compared as one merged data set.

digest_of([Path("shard_000000.bin"), Path("shard_000001.bin")]) == digest_of([Path("corpus_text_document.bin")])
"""

import hashlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

MAGIC = b"MMIDIDX\x00\x00"
HEADER_BYTES = 34
DTYPES = {4: np.dtype("<i4"), 8: np.dtype("<u2")}
BLOCK = 1 << 24


class Digest(NamedTuple):
    """SHA-256 of the token file and of the index of the merged data set."""

    bin: str
    idx: str | None
    """None if the tool writes no index."""
    tokens: int
    documents: tuple[bytes, ...] = ()
    """Digest of each document's ids, if there is an index."""


class Index(NamedTuple):
    code: int
    lengths: np.ndarray
    """int32, tokens of each sequence."""
    ends: np.ndarray
    """int64, sequences before the end of each document, without the leading 0."""


def digest_of(bins: list[Path], token_bytes: int = 4) -> Digest:
    """Digest of the shards in this order; either all or none of the `.bin` files have an `.idx`.

    Args:
        token_bytes: size of a token, for files without an index.
    """
    token_file = digest_of_files(bins)
    size = sum(file.stat().st_size for file in bins)
    indices = [file.with_suffix(".idx") for file in bins]
    if not any(file.is_file() for file in indices):
        return Digest(token_file, None, size // token_bytes)
    parts = [read_index(file) for file in indices]
    index, tokens = hashlib.sha256(merged(parts)).hexdigest(), sum(int(part.lengths.sum()) for part in parts)
    documents = [one for file, part in zip(bins, parts, strict=True) for one in documents_of(file, part)]
    return Digest(token_file, index, tokens, tuple(documents))


def documents_of(file: Path, index: Index) -> Iterator[bytes]:
    """Digests of each document's ids."""
    if not len(index.ends):
        return
    content = file.read_bytes()
    size = DTYPES[index.code].itemsize
    bounds = np.concatenate([[0], np.cumsum(index.lengths.astype("<i8"))])[np.concatenate([[0], index.ends])] * size
    for start, end in pairwise(bounds.tolist()):
        yield hashlib.blake2b(content[start:end], digest_size=8).digest()


def changed(found: Digest, reference: Digest) -> set[int] | None:
    """Indices of documents with different ids; None if the numbers of documents differ."""
    if len(found.documents) != len(reference.documents):
        return None
    pairs = enumerate(zip(found.documents, reference.documents, strict=True))
    return {number for number, (one, other) in pairs if one != other}


def digest_of_files(files: list[Path]) -> str:
    state = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                state.update(block)
    return state.hexdigest()


def read_index(path: Path) -> Index:
    """Read an index; raises `ValueError` if its layout, including byte offsets, is invalid."""
    content = path.read_bytes()
    code = content[17]
    sequences, entries = (int(n) for n in np.frombuffer(content, "<u8", 2, 18))
    lengths = np.frombuffer(content, "<i4", sequences, HEADER_BYTES)
    ends = np.frombuffer(content, "<i8", entries, HEADER_BYTES + 12 * sequences)[1:]
    index = Index(code, lengths, ends)
    if merged([index]) != content:
        raise ValueError(f"{path}: not an index of version 1 over one gapless file")
    return index


def merged(parts: list[Index]) -> bytes:
    """Index of all parts concatenated."""
    lengths = np.concatenate([part.lengths for part in parts])
    before = np.cumsum([0, *(len(part.lengths) for part in parts)])
    ends = [np.zeros(1, "<i8"), *(part.ends + shift for part, shift in zip(parts, before, strict=False))]
    offsets = np.zeros(len(lengths), "<i8")
    np.cumsum(lengths[:-1].astype("<i8") * DTYPES[parts[0].code].itemsize, out=offsets[1:])
    documents = np.concatenate(ends).astype("<i8")
    counts = np.array([len(lengths), len(documents)], "<u8").tobytes()
    head = MAGIC + (1).to_bytes(8, "little") + bytes([parts[0].code]) + counts
    return head + lengths.astype("<i4").tobytes() + offsets.tobytes() + documents.tobytes()


def verdict(found: Digest, reference: Digest) -> str:
    """Comparison with the reference, in words for the table."""
    if found.bin == reference.bin:
        return "same bytes" if found.idx == reference.idx else "same .bin" if found.idx is None else "OTHER .idx"
    return "same token count" if found.tokens == reference.tokens else f"OTHER: {found.tokens:,} tokens"
