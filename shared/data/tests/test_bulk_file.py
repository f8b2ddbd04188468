"""Large files written past the page cache hold just what was written, whatever the file system can."""

import errno
import fcntl
import hashlib
import os
from pathlib import Path

import pytest

from nemotron_data.formats.bin_idx import BLOCK_BYTES, BulkFile
from nemotron_shared.atomic import open_atomic
from nemotron_shared.errors import UserError

CONTENT = os.urandom(3 * BLOCK_BYTES + 12_345)
PIECES = (4096, 700_001, BLOCK_BYTES, len(CONTENT))


def write(path: Path, content: bytes, piece: int = 700_001) -> str:
    with open_atomic(path) as file, BulkFile(file) as bulk:
        for start in range(0, len(content), piece):
            bulk.write(content[start : start + piece])
        return bulk.finish()


def is_direct(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & getattr(os, "O_DIRECT", 0))


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES, len(CONTENT)])
def test_every_size_comes_out_whole(tmp_path, size) -> None:
    content = CONTENT[:size]
    assert write(tmp_path / "a.bin", content) == hashlib.sha256(content).hexdigest()
    assert (tmp_path / "a.bin").read_bytes() == content


@pytest.mark.parametrize("piece", PIECES)
def test_the_pieces_do_not_matter(tmp_path, piece) -> None:
    write(tmp_path / "a.bin", CONTENT, piece)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_single_bytes(tmp_path) -> None:
    write(tmp_path / "a.bin", CONTENT[:10_000], 1)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT[:10_000]


def test_blocks_are_direct_where_that_works_and_the_rest_is_not(tmp_path, monkeypatch) -> None:
    seen = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: seen.append((is_direct(fd), len(data))) or real(fd, data))
    write(tmp_path / "a.bin", CONTENT)
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
    write(tmp_path / "a.bin", CONTENT)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_system_that_writes_a_part_at_a_time(tmp_path, monkeypatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:99_999]))
    write(tmp_path / "a.bin", CONTENT)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_full_disk_is_told_and_nothing_is_left(tmp_path, monkeypatch) -> None:
    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(UserError, match="cannot be written: No space left"):
        write(tmp_path / "a.bin", CONTENT)
    assert list(tmp_path.iterdir()) == []
