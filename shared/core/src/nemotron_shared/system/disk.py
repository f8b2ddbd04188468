"""Check for disk space before writing something large, and raise one clear error if it runs out anyway."""

import errno
import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from nemotron_shared.system.errors import UserError

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
FAILED = NO_ROOM | {errno.EIO}
FAILED_REMEDY = "look after the disk or file server, then run the same command again to continue"
REMEDY = "free some space there and run the same command again to continue"
UNOPENED = "a file in it could not be opened"
UNOPENED_REMEDY = "check the permissions there and the room, then run the same command again to continue"


def require_room(folder: Path, needed: int, what: str) -> None:
    """Refuse to start if the disk is too small.

    Args:
        needed: bytes that will be written, approximately.
        what: what they are for, at the start of the message.

    Raises:
        UserError: fewer bytes are free.
    """
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(f"{what} needs about {size(needed)} in {folder}; {size(free)} are free", REMEDY)


def full_disk_error(error: BaseException, path: Path) -> UserError | None:
    """The user's error for a failed write to `path`; None if the disk was not the cause."""
    reason = _reason(error)
    if reason is None:
        return None
    if reason == os.strerror(errno.EIO):
        return UserError(
            f"{getattr(error, 'filename', None) or path}: {reason} as it was written or read", FAILED_REMEDY
        )
    folder = next(parent for parent in (path, *path.parents) if parent.exists())
    free = size(shutil.disk_usage(folder).free)
    remedy = UNOPENED_REMEDY if reason == UNOPENED else REMEDY
    return UserError(f"{path} could not be written: {reason} ({free} are free)", remedy)


@contextmanager
def full_disk_explained(path: Path) -> Generator[None]:
    """Turn a disk that fills up inside the block into a single clear error."""
    try:
        yield
    except Exception as error:
        full = None if isinstance(error, UserError) else full_disk_error(error, path)
        if full is None:
            raise
        raise full from error


def size(count: float) -> str:
    """Format a number of bytes."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count} bytes"


def _reason(error: BaseException) -> str | None:
    """Why the disk refused a write, in the system's words.

    safetensors gives the errno only in its text. torch's writer drops it, and reports either a failed write or, when
    closing the broken file, an unexpected position; for a file it may not open, there is only C++'s own text. Errors of
    torch's reader come from the same source file and mean something else. Our own atomic writer has already raised a
    UserError.
    """
    if isinstance(error, OSError) and error.errno in FAILED:
        return os.strerror(error.errno)
    text = str(error)
    number = re.search(r"os error (\d+)", text)
    if number and int(number[1]) in FAILED:
        return os.strerror(int(number[1]))
    if isinstance(error, RuntimeError) and "inline_container" in text and "PytorchStreamReader" not in text:
        return "not all bytes were taken"
    if isinstance(error, RuntimeError) and "iostream error" in text:
        return UNOPENED
    if isinstance(error, UserError) and isinstance(error.__cause__, OSError):
        return _reason(error.__cause__)
    return None
