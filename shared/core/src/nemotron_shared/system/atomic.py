"""Atomic writes: a reader, or a rerun after a kill, sees the old file or the new one, never a part.

Every write goes to a temporary name next to the target, is synced, and is renamed over it. Check a path typed by a
user with `output_file` first: a rename would replace even a device or a link.
"""

import errno
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from nemotron_shared.system.errors import UserError, disk_remedy

# Errors that only a write can raise: a failed read inside the block must not be reported as a failed write.
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
TEMPORARY_PREFIX = ".tmp-"
COPIED_AT_ONCE = 1 << 30
LARGEST_JSON = 64 * 2**20
"""Bytes of a JSON file read in one go, unless this program wrote it."""
LONGEST_SHOWN = 40
"""Characters of the target's name kept in the temporary name, to stay below the file system's limit."""


@contextmanager
def open_atomic(path: Path, mode: str = "wb") -> Generator[IO[Any]]:
    """Open a temporary file that is renamed to `path` when the block ends without an error."""
    if path.exists() and not (path.is_symlink() or path.is_file() or path.is_dir()):
        raise UserError(f"{path}: cannot be written: that is a device or a pipe, and no file", "name another file")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f"{TEMPORARY_PREFIX}{path.name[:LONGEST_SHOWN]}.{secrets.token_hex(4)}"
    # permissions of any new file: the umask and the folder's defaults apply
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise UserError(f"{path}: cannot be written: {error.strerror}", "free space and run again") from error
        if isinstance(error, OSError) and error.errno == errno.EIO:
            raise UserError(f"{path}: {error.strerror} while it was written", disk_remedy(error)) from error
        raise
    sync(path.parent)


def output_file(named: Path | str) -> Path:
    """Check where a user's output file will be written, before doing the work for it.

    A link resolves to the file it points to, which is replaced. Refused are targets a rename would destroy: a device, a
    pipe, a folder, or the file this command prints to.

    Raises:
        UserError: nothing can be written there.
    """
    expanded = Path(named).expanduser()
    path = Path(os.path.realpath(expanded))
    try:
        problem = _not_replaceable(expanded, str(named))  # unresolved: /dev/stdout is not a plain link
    except OSError as error:
        problem = error.strerror
    problem = problem or why_closed(path.parent)
    if problem:
        raise UserError(f"{str(named) or repr('')}: cannot be written: {problem}", "name another file")
    return path


def require_writable(folder: Path) -> None:
    """Refuse a folder that takes no files, as /proc, before doing the work for it. It need not exist yet.

    Raises:
        UserError: nothing can be written there.
    """
    if problem := why_closed(folder):
        raise UserError(f"{folder}: cannot be written: {problem}", "name another folder")


def why_closed(folder: Path) -> str | None:
    """Why a folder, or the one that it will be made in, takes no files; None if it does."""
    try:
        above = next(one for one in (folder, *folder.parents) if one.exists())
        with tempfile.TemporaryFile(dir=above):  # the only sure test of write access
            return None
    except OSError as error:
        return "its folder takes no files" if error.errno == errno.ENOENT else error.strerror


def _not_replaceable(path: Path, named: str) -> str | None:
    if named == "-":
        return "this command writes no file to standard output"
    try:
        found = path.stat()
    except FileNotFoundError:
        return "that is the name of a folder" if named.endswith("/") else None
    if stat.S_ISDIR(found.st_mode):
        return "that is a folder"
    if not stat.S_ISREG(found.st_mode):
        return "that is a device or a pipe, and no file"
    if any(os.path.samestat(found, os.fstat(number)) for number in (1, 2)):
        return "what this command prints goes there"
    return None


@contextmanager
def named(path: Path) -> Generator[None]:
    """Add the file's name to errors from an open file: the system leaves it out."""
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


def temporary_folder(parent: Path, prefix: str) -> Path:
    """Make a new folder with the umask's permissions; `tempfile` would make it private to the owner."""
    folder = parent / f"{prefix}{secrets.token_hex(4)}"
    folder.mkdir()
    return folder


def link_or_copy(source: Path | str, target: Path | str) -> None:
    """Hard-link a file that never changes; copy it where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def copy_content(source: Path, target: Path) -> None:
    """Copy a file whose owner may change it later; where the file system supports it, blocks are shared until then."""
    with suppress(OSError, AttributeError), source.open("rb") as old, target.open("wb") as new:
        while os.copy_file_range(old.fileno(), new.fileno(), COPIED_AT_ONCE):
            pass
        if os.fstat(new.fileno()).st_size == os.fstat(old.fileno()).st_size:  # some file systems end early
            return
    shutil.copyfile(source, target)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the content of `path`."""
    with open_atomic(path) as file:
        file.write(content)


def write_text(path: Path, content: str) -> None:
    """Replace the content of `path`, in UTF-8."""
    write_bytes(path, content.encode())


def write_json(path: Path, content: Any) -> None:
    """Replace `path` by indented JSON with sorted keys, so that equal content gives equal bytes."""
    write_text(path, json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def require_size(path: Path, most: int, remedy: str) -> None:
    """Refuse a file larger than `most` bytes before it fills the memory. A missing file is left to its reader.

    Raises:
        UserError: with the file and its size.
    """
    if path.is_file() and (found := path.stat().st_size) > most:
        raise UserError(f"{path}: {found:,} bytes, and {most:,} are the most", remedy)


def read_regular(path: Path) -> bytes:
    """Read a file; see `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def open_regular(path: Path) -> IO[bytes]:
    """Open a file for reading, refusing anything else: reading from a pipe in its place would block forever.

    Raises:
        UserError: not a regular file.
    """
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 (the caller closes it)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UserError(f"{path}: not a regular file", "remove it, or put the file back in its place")
    return file


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def read_json(path: Path, remedy: str = "correct the file, or make it again", most: int | None = LARGEST_JSON) -> Any:
    """Parse a JSON file; errors name the file, the line and the remedy.

    Args:
        most: largest size in bytes; None for files we wrote ourselves, however long.
    """
    if most is not None:
        require_size(path, most, remedy)
    try:
        return json.loads(read_regular(path).decode())
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file", "check the path, or make the file again") from error
    except (ValueError, RecursionError) as error:  # bad UTF-8 or syntax, numbers of thousands of digits; too deep
        raise UserError(f"{path}: not valid JSON: {error}", remedy) from error
