"""Large files written past the page cache hold just what was written, whatever the file system can."""

import errno
import fcntl
import hashlib
import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_support import add_document

from nemotron_data.formats.bin_idx import (
    BLOCK_BYTES,
    BulkFile,
    IndexedDataset,
    IndexedDatasetWriter,
    read_blend,
    token_dtype,
    write_blend,
)
from nemotron_shared.system.atomic import open_atomic
from nemotron_shared.system.errors import UserError

DOCUMENTS = [[11, 12, 2], [2], [65_000, 7, 7, 7, 2]]


def write(prefix: Path, documents: list[list[int]], vocab_size: int = 65_499) -> IndexedDatasetWriter:
    with IndexedDatasetWriter(prefix, vocab_size) as writer:
        for ids in documents:
            add_document(writer, np.array(ids))
    return writer


@pytest.mark.parametrize(("vocab_size", "code", "letter"), [(65_499, 8, "H"), (65_500, 4, "i")])
def test_bytes_are_the_ones_the_format_prescribes(tmp_path, vocab_size, code, letter):
    writer = write(tmp_path / "a.b_text_document", DOCUMENTS, vocab_size)
    size = struct.calcsize(f"<{letter}")
    tokens = struct.pack(f"<9{letter}", 11, 12, 2, 2, 65_000, 7, 7, 7, 2)
    index = b"MMIDIDX\x00\x00" + struct.pack("<Q", 1) + struct.pack("<B", code) + struct.pack("<QQ", 3, 4)
    index += struct.pack("<3i", 3, 1, 5) + struct.pack("<3q", 0, 3 * size, 4 * size) + struct.pack("<4q", 0, 1, 2, 3)
    assert (tmp_path / "a.b_text_document.bin").read_bytes() == tokens
    assert (tmp_path / "a.b_text_document.idx").read_bytes() == index
    assert len(list(tmp_path.iterdir())) == 2
    assert (writer.documents, writer.tokens) == (3, 9)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.integers(0, 99_999), min_size=1, max_size=9), min_size=1, max_size=9))
def test_what_is_written_is_read_back(tmp_path_factory, documents):
    prefix = tmp_path_factory.mktemp("d") / "x"
    write(prefix, documents, 100_000)
    dataset = IndexedDataset(prefix)
    assert [ids.tolist() for ids in dataset] == documents
    assert dataset[-1].tolist() == documents[-1]
    assert dataset.lengths.tolist() == [len(ids) for ids in documents]
    assert dataset.num_tokens == sum(map(len, documents))
    assert (len(dataset), dataset.dtype, dataset[0].dtype) == (len(documents), np.int32, np.int32)


def test_megatrons_documents_without_sequences_can_be_read(tmp_path):
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, 1, 3) + struct.pack("<iqqqq", 2, 0, 0, 0, 1)
    (tmp_path / "x.idx").write_bytes(index)
    (tmp_path / "x.bin").write_bytes(struct.pack("<HH", 5, 6))
    assert [ids.tolist() for ids in IndexedDataset(tmp_path / "x")] == [[5, 6]]
    empty = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, 0, 1) + struct.pack("<q", 0)
    (tmp_path / "y.idx").write_bytes(empty)
    (tmp_path / "y.bin").write_bytes(b"")
    assert (len(IndexedDataset(tmp_path / "y")), IndexedDataset(tmp_path / "y").num_tokens) == (0, 0)


def test_the_dtype_follows_megatrons_threshold():
    assert [token_dtype(size).itemsize for size in (256, 65_499, 65_500, 131_072)] == [2, 2, 4, 4]


def test_an_error_leaves_no_file(tmp_path):
    with pytest.raises(RuntimeError), IndexedDatasetWriter(tmp_path / "x", 100) as writer:
        add_document(writer, np.array([1]))
        raise RuntimeError
    with pytest.raises(UserError, match="no document"), IndexedDatasetWriter(tmp_path / "x", 100):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_failed_rewrite_keeps_the_old_pair(tmp_path):
    write(tmp_path / "x", [[1, 2]])
    with pytest.raises(RuntimeError), IndexedDatasetWriter(tmp_path / "x", 100):
        raise RuntimeError
    assert IndexedDataset(tmp_path / "x")[0].tolist() == [1, 2]
    write(tmp_path / "x", [[3]])
    assert IndexedDataset(tmp_path / "x")[0].tolist() == [3]


@pytest.mark.parametrize("ids", [[100], [-1], [5, 2**40]])
def test_ids_outside_the_vocabulary_are_refused(tmp_path, ids):
    with pytest.raises(UserError, match="vocabulary of 100"):
        write(tmp_path / "x", [[1], ids], vocab_size=100)


@pytest.mark.parametrize("ids", [np.array([], np.int64), np.array([[1]]), np.array([1.0])])
def test_what_is_no_document_is_refused(tmp_path, ids):
    with IndexedDatasetWriter(tmp_path / "x", 100) as writer:
        add_document(writer, np.array([1]))
        with pytest.raises(ValueError, match=r"not empty|1-D array of integers"):
            add_document(writer, ids)
    assert len(IndexedDataset(tmp_path / "x")) == 1


def change(path: Path, at: int, to: bytes) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:at] + to + content[at + len(to) :])


DAMAGE = {
    "bin cut": lambda d: (d / "x.bin").write_bytes((d / "x.bin").read_bytes()[:-1]),
    "bin longer": lambda d: (d / "x.bin").write_bytes((d / "x.bin").read_bytes() + b"\0\0"),
    "bin gone": lambda d: (d / "x.bin").unlink(),
    "idx cut": lambda d: (d / "x.idx").write_bytes((d / "x.idx").read_bytes()[:-8]),
    "idx header cut": lambda d: (d / "x.idx").write_bytes(b"MMIDIDX"),
    "idx longer": lambda d: (d / "x.idx").write_bytes((d / "x.idx").read_bytes() + b"\0"),
    "magic": lambda d: change(d / "x.idx", 0, b"X"),
    "version": lambda d: change(d / "x.idx", 9, b"\2"),
    "dtype": lambda d: change(d / "x.idx", 17, b"\7"),
    "other dtype": lambda d: change(d / "x.idx", 17, b"\4"),
    "count": lambda d: change(d / "x.idx", 18, b"\xff" * 8),
    "length": lambda d: change(d / "x.idx", 34, b"\4"),
    "negative length": lambda d: change(d / "x.idx", 34, b"\xff" * 4),
    "offset": lambda d: change(d / "x.idx", 34 + 12, b"\2"),
    "document index": lambda d: change(d / "x.idx", 34 + 36, b"\1"),
    "document index end": lambda d: change(d / "x.idx", 34 + 36 + 24, b"\2"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_found(tmp_path, damage):
    write(tmp_path / "x", DOCUMENTS)
    damage(tmp_path)
    with pytest.raises(UserError, match=r"x\.(bin|idx): corrupt") as caught:
        IndexedDataset(tmp_path / "x")
    assert "--force" in str(caught.value.remedy)


def test_a_prefix_with_its_suffix_is_explained(tmp_path):
    write(tmp_path / "x", DOCUMENTS)
    with pytest.raises(UserError) as caught:
        IndexedDataset(tmp_path / "x.bin")
    assert "without .bin" in str(caught.value)


def test_a_blend_can_be_moved_with_its_folder(tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    for name in ("web", "books", "held"):
        write(before / "data" / name, DOCUMENTS)
    write_blend(before / "blend.json", {"train": [(0.7, "data/web"), (2, "data/books")], "valid": [(1, "data/held")]})
    assert json.loads((before / "blend.json").read_text()) == {
        "train": ["0.7", "data/web", "2.0", "data/books"],
        "valid": ["1.0", "data/held"],
        "test": None,
    }
    before.rename(after)
    blend = read_blend(after / "blend.json")
    assert blend == {
        "train": [(0.7, after / "data/web"), (2.0, after / "data/books")],
        "valid": [(1.0, after / "data/held")],
    }
    assert len(IndexedDataset(blend["train"][0][1])) == 3


@pytest.mark.parametrize(
    ("blend", "message"),
    [
        ({"trian": []}, "did you mean 'train'"),
        ({"train": [(1.0, "/data/x")]}, "absolute"),
        ({"train": [(1.0, "y")]}, "y.bin is missing"),
        ({"train": [(0.0, "x")]}, "not a positive number"),
        ({"train": [(float("nan"), "x")]}, "not a positive number"),
    ],
)
def test_a_wrong_blend_is_not_written(tmp_path, blend, message):
    write(tmp_path / "x", DOCUMENTS)
    with pytest.raises(UserError) as caught:
        write_blend(tmp_path / "blend.json", blend)
    assert message in str(caught.value)
    assert not (tmp_path / "blend.json").exists()


@pytest.mark.parametrize(
    "content", ["[]", '{"other": []}', '{"train": ["1.0"]}', '{"train": ["x", "x"]}', '{"train": [1, 2]}', "{"]
)
def test_a_wrong_blend_is_not_read(tmp_path, content):
    write(tmp_path / "x", DOCUMENTS)
    (tmp_path / "blend.json").write_text(content)
    with pytest.raises(UserError, match=r"blend\.json"):
        read_blend(tmp_path / "blend.json")


def test_weights_whose_sum_is_no_number_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "x", DOCUMENTS)
    (tmp_path / "blend.json").write_text('{"train": [1e308, "x", 1e308, "x"]}')
    with pytest.raises(UserError, match="'train': its weights are too large to be added"):
        read_blend(tmp_path / "blend.json")


CONTENT = os.urandom(3 * BLOCK_BYTES + 12_345)
PIECES = (4096, 700_001, BLOCK_BYTES, len(CONTENT))


def write_bulk(path: Path, content: bytes, piece: int = 700_001) -> str:
    with open_atomic(path) as file, BulkFile(file) as bulk:
        for start in range(0, len(content), piece):
            bulk.write(content[start : start + piece])
        return bulk.finish()


def is_direct(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & getattr(os, "O_DIRECT", 0))


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES, len(CONTENT)])
def test_every_size_comes_out_whole(tmp_path, size) -> None:
    content = CONTENT[:size]
    assert write_bulk(tmp_path / "a.bin", content) == hashlib.sha256(content).hexdigest()
    assert (tmp_path / "a.bin").read_bytes() == content


@pytest.mark.parametrize("piece", PIECES)
def test_the_pieces_do_not_matter(tmp_path, piece) -> None:
    write_bulk(tmp_path / "a.bin", CONTENT, piece)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_single_bytes(tmp_path) -> None:
    write_bulk(tmp_path / "a.bin", CONTENT[:10_000], 1)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT[:10_000]


def test_blocks_are_direct_where_that_works_and_the_rest_is_not(tmp_path, monkeypatch) -> None:
    seen = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: seen.append((is_direct(fd), len(data))) or real(fd, data))
    write_bulk(tmp_path / "a.bin", CONTENT)
    assert [size for _, size in seen] == [BLOCK_BYTES] * 3 + [12_345]
    assert seen[-1][0] is False
    if not can_be_direct(tmp_path):
        pytest.skip("no direct writing in this folder")
    assert [direct for direct, _ in seen[:3]] == [True] * 3


def can_be_direct(folder: Path) -> bool:
    try:
        os.close(os.open(folder / "probe", os.O_CREAT | os.O_WRONLY | os.O_DIRECT))
    except (AttributeError, OSError):
        return False
    return True


def test_a_device_with_another_alignment_gets_ordinary_writes(tmp_path, monkeypatch) -> None:
    real = os.write

    def picky(descriptor: int, data: memoryview) -> int:
        if is_direct(descriptor):
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", picky)
    write_bulk(tmp_path / "a.bin", CONTENT)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_system_that_writes_a_part_at_a_time(tmp_path, monkeypatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:99_999]))
    write_bulk(tmp_path / "a.bin", CONTENT)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_full_disk_is_told_and_nothing_is_left(tmp_path, monkeypatch) -> None:
    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(UserError, match="cannot be written: No space left"):
        write_bulk(tmp_path / "a.bin", CONTENT)
    assert list(tmp_path.iterdir()) == []
