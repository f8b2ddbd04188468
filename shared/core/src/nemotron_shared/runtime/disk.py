"""Room on the disk: asked for before something large is written, and one clear error when it runs out anyway."""

import errno
import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from nemotron_shared.errors import UserError

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
FAILED = NO_ROOM | {errno.EIO}
FAILED_REMEDY = "look after the disk or file server, then run the same command again to continue"
REMEDY = "free some space there and run the same command again to continue"
UNOPENED = "a file in it could not be opened"
UNOPENED_REMEDY = "check the permissions there and the room, then run the same command again to continue"


def require_room(folder: Path, needed: int, what: str) -> None:
    """Refuse to begin what would not fit.

    Args:
        needed: bytes that will be written, as nearly as they are known.
        what: what they are for, at the beginning of the message.

    Raises:
        UserError: fewer bytes are free.
    """
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(f"{what} needs about {size(needed)} in {folder}; {size(free)} are free", REMEDY)


def full_disk_error(error: BaseException, path: Path) -> UserError | None:
    """The error that a person reads when a disk did not take what was written to `path`; None for other causes."""
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
    """Turn a disk that fills up inside the block into the one error about it."""
    try:
        yield
    except Exception as error:
        full = None if isinstance(error, UserError) else full_disk_error(error, path)
        if full is None:
            raise
        raise full from error


def size(count: float) -> str:
    """Bytes for people."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count} bytes"


def _reason(error: BaseException) -> str | None:
    """Why the disk did not take it, in the system's words.

    safetensors has the system's number in its text only. torch's writer drops it, and then says either that it failed
    or, from the broken file it closes, that a position is not the expected one; of a file that it may not open, only
    C++'s own words are left. Errors of torch's reader come from the same file of its sources and are something else.
    Our own atomic writer has already said it in a UserError.
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
