"""What was found out about files, remembered as long as nothing touches them.

    cache = FileCache(home / "cache" / "code.json")
    cache.get(path, parse)      # parse(path), or what that returned before
    cache.save()

An entry holds as long as the file keeps its inode, size, mtime and ctime. A change that keeps all four is not seen.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from nemotron_shared import atomic
from nemotron_shared.digest import json_digest
from nemotron_shared.errors import UserError

# A file written again within one tick of its file system's clock keeps its times. Clocks tick every 10 ms or
# faster, and those that know whole seconds only are told by their zeros.
TICK_NS = 100_000_000
COARSE_TICK_NS = 2_000_000_000


class FileCache:
    """Values by file, JSON all of them; without a `path` they are kept in memory only."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._entries: dict[str, list[Any]] = {}
        self._changed = False
        # A cache that is missing or damaged knows nothing; its own digest guards it too.
        with suppress(UserError, OSError, KeyError, TypeError):
            content = atomic.read_json(path) if path else {}
            if content["digest"] == json_digest(content["files"]):
                self._entries = content["files"]

    def get(self, file: Path, find_out: Callable[[Path], Any], aspect: str = "") -> Any:
        """`find_out(file)`, known or found out now; `aspect` tells several values of one file apart."""
        key = f"{file} {aspect}".rstrip()
        began, state = time.time_ns(), _state(file)
        entry = self._entries.get(key)
        if entry and entry[:-1] == state:
            return entry[-1]
        value = find_out(file)
        # What was written a moment ago may be written again within the same tick, so it is not known yet.
        whole_seconds = all(time_ns % 1_000_000_000 == 0 for time_ns in state[2:])
        settled = max(state[2:]) + (COARSE_TICK_NS if whole_seconds else TICK_NS) < began
        if settled and _state(file) == state:
            self._entries[key] = [*state, value]
            self._changed = True
        return value

    def save(self) -> None:
        """Keep what was learned for the next process. Where that cannot be written, it is found out again."""
        if self._changed and self.path:
            with suppress(OSError, UserError):
                atomic.write_json(self.path, {"files": self._entries, "digest": json_digest(self._entries)})


def _state(file: Path) -> list[int]:
    found = file.stat()
    return [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
