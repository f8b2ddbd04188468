"""Write so that a reader, or a rerun after a kill, sees the old file or the new one and never a part of it.

Every write goes to a temporary name beside the target, is synced, and is renamed over it.
"""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from nemotron_shared.errors import UserError, disk_remedy

# A failed read inside the block must not be reported as a failed write, so only these count as one.
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
TEMPORARY_PREFIX = ".tmp-"


@contextmanager
def open_atomic(path: Path, mode: str = "wb") -> Generator[IO[Any]]:
    """Open a temporary file that takes the name `path` when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f"{TEMPORARY_PREFIX}{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise UserError(f"{path}: cannot be written: {error.strerror}", "free space and run again") from error
        if isinstance(error, OSError) and error.errno == errno.EIO:
            raise UserError(f"{path}: {error.strerror} while it was written", disk_remedy(error)) from error
        raise
    sync(path.parent)


@contextmanager
def named(path: Path) -> Generator[None]:
    """Let an error of a file that is open say which file it is: the system does not."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def sync(path: Path) -> None:
    """Make a file's content, or the names inside a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with named(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link_or_copy(source: Path | str, target: Path | str) -> None:
    """Give a file a second name; a file system without links gets a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content`."""
    with open_atomic(path) as file:
        file.write(content)


def write_text(path: Path, content: str) -> None:
    """Replace `path` by `content` in UTF-8."""
    write_bytes(path, content.encode())


def write_json(path: Path, content: Any) -> None:
    """Replace `path` by indented JSON with sorted keys, so that equal content gives equal bytes."""
    write_text(path, json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def read_json(path: Path, remedy: str | None = None) -> Any:
    """Parse a JSON file, or say which file and line is broken, and what to do about it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file") from error
    except (ValueError, RecursionError) as error:  # bytes, syntax, numbers of thousands of digits; too deep
        raise UserError(f"{path}: not valid JSON: {error}", remedy) from error
