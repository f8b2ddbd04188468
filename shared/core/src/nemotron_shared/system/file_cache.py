"""Cache values computed from files for as long as the files do not change.

    cache = FileCache(home / "cache" / "code.json")
    cache.get(path, parse)      # parse(path), or its earlier result
    cache.save()

An entry is valid while the file keeps its inode, size, mtime and ctime. A change that keeps all four goes unnoticed.
The file on disk is one line with the digest of the next line and the code that wrote it: a damaged cache, or one
written by other code, counts as empty.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from nemotron_shared.system import atomic
from nemotron_shared.system.errors import UserError

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
