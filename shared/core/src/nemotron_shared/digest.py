"""Content digests: the identity of files, folders and configurations."""

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from nemotron_shared import atomic
from nemotron_shared.errors import UserError

# Hashing is bound by disk as much as by CPU, and hashlib releases the GIL.
HASHING_THREADS = 8
PIECE = 1 << 18

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
_thread = threading.local()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(PIECE))
    left: threading.Event | None = getattr(_thread, "left", None)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            if left is not None and left.is_set():
                raise InterruptedError(f"{path}: nobody waits for its digest any more")
            digest.update(buffer[:count])
    return digest.hexdigest()


def in_threads(take: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> list[ResultT]:
    """Map `take`, which may hash files, over the items in threads; an interrupt does not wait for large files."""
    left = threading.Event()
    with ThreadPoolExecutor(HASHING_THREADS, initializer=setattr, initargs=(_thread, "left", left)) as pool:
        try:
            return list(pool.map(take, items))
        except BaseException:
            left.set()
            raise


def json_digest(value: Any) -> str:
    """SHA-256 of a JSON value, independent of the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def tree_files(root: Path) -> list[Path]:
    """All files below `root`, sorted."""
    return sorted((path for path in root.rglob("*") if path.is_file()), key=lambda path: path.as_posix())


# A file rewritten within one tick of its file system's clock keeps its times. Clocks tick every 10 ms or
# faster; those with whole seconds only show zeros for the rest.
TICK_NS = 100_000_000
COARSE_TICK_NS = 2_000_000_000


class FileCache:
    """JSON values by file; in memory only without a `path`.

    `made_by` identifies the code that computes the values: entries written by other code are ignored.
    """

    def __init__(self, path: Path | None, made_by: str = "") -> None:
        self.path = path
        self._made_by = made_by
        self._entries: dict[str, list[Any]] = {}
        self._asked: set[str] = set()
        self._changed = False
        with suppress(OSError, UserError, ValueError, KeyError, TypeError, RecursionError):
            heading, _, content = atomic.read_regular(path).partition(b"\n") if path else (b"{}", b"", b"")
            if json.loads(heading) == self._heading(content):
                self._entries = json.loads(content)

    def get(self, file: Path | str, find_out: Callable[[Any], Any], aspect: str = "") -> Any:
        """`find_out(file)`, cached or computed now; `aspect` distinguishes several values of one file."""
        key = f"{file} {aspect}" if aspect else str(file)
        state, entry = _state(file), self._entries.get(key)
        self._asked.add(key)
        if entry and entry[0] == state:
            return entry[1]
        began, value = time.time_ns(), find_out(file)
        # A file written a moment ago may be rewritten within the same tick, so don't cache it yet.
        whole_seconds = all(time_ns % 1_000_000_000 == 0 for time_ns in state[2:])
        settled = max(state[2:]) + (COARSE_TICK_NS if whole_seconds else TICK_NS) < began
        if settled and _state(file) == state:
            self._entries[key] = [state, value]
            self._changed = True
        return value

    def forget_others(self) -> None:
        """Drop entries not asked for or added since the cache was opened: their files are gone."""
        for key in self._entries.keys() - self._asked:
            del self._entries[key]
            self._changed = True

    def save(self) -> None:
        """Write new entries for the next process. If that fails, they are computed again."""
        if self._changed and self.path:
            content = json.dumps(self._entries).encode()
            with suppress(OSError, UserError):
                atomic.write_bytes(self.path, json.dumps(self._heading(content)).encode() + b"\n" + content)
                self._changed = False

    def _heading(self, content: bytes) -> dict[str, str]:
        return {"digest": hashlib.sha256(content).hexdigest(), "made_by": self._made_by}


def _state(file: Path | str) -> list[int]:
    found = os.stat(file)  # noqa: PTH116 - Path takes twice as long, and an index stats ten thousand files
    return [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
