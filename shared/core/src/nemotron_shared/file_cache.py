"""What was found out about files, remembered as long as nothing touches them.

    cache = FileCache(home / "cache" / "code.json")
    cache.get(path, parse)      # parse(path), or what that returned before
    cache.save()

An entry holds as long as the file keeps its inode, size, mtime and ctime. A change that keeps all four is not seen.
On disk a line with the digest of the next one, and who found it out: a cache that is damaged, or that other code
wrote, knows nothing.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from nemotron_shared import atomic
from nemotron_shared.errors import UserError

# A file written again within one tick of its file system's clock keeps its times. Clocks tick every 10 ms or
# faster, and those that know whole seconds only are told by their zeros.
TICK_NS = 100_000_000
COARSE_TICK_NS = 2_000_000_000


class FileCache:
    """Values by file, JSON all of them; without a `path` they are kept in memory only.

    `made_by` names the code that finds out: what other code found out is not used.
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
        """`find_out(file)`, known or found out now; `aspect` tells several values of one file apart."""
        key = f"{file} {aspect}" if aspect else str(file)
        state, entry = _state(file), self._entries.get(key)
        self._asked.add(key)
        if entry and entry[0] == state:
            return entry[1]
        began, value = time.time_ns(), find_out(file)
        # What was written a moment ago may be written again within the same tick, so it is not known yet.
        whole_seconds = all(time_ns % 1_000_000_000 == 0 for time_ns in state[2:])
        settled = max(state[2:]) + (COARSE_TICK_NS if whole_seconds else TICK_NS) < began
        if settled and _state(file) == state:
            self._entries[key] = [state, value]
            self._changed = True
        return value

    def forget_others(self) -> None:
        """Forget the files that nobody has asked for, or found, since this was opened: they are gone."""
        for key in self._entries.keys() - self._asked:
            del self._entries[key]
            self._changed = True

    def save(self) -> None:
        """Keep what was learned for the next process. Where that cannot be written, it is found out again."""
        if self._changed and self.path:
            content = json.dumps(self._entries).encode()
            with suppress(OSError, UserError):
                atomic.write_bytes(self.path, json.dumps(self._heading(content)).encode() + b"\n" + content)
                self._changed = False

    def _heading(self, content: bytes) -> dict[str, str]:
        return {"digest": hashlib.sha256(content).hexdigest(), "made_by": self._made_by}


def _state(file: Path | str) -> list[int]:
    found = os.stat(file)  # noqa: PTH116 - Path takes twice as long, and an index asks for ten thousand
    return [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
