"""Report the progress of workers in small files that the parent reads.

Files work for local processes and for other machines alike. Those of a dead worker are removed with its temporary
folder.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path

NAME = "heartbeat"
SECONDS = 0.5


class Heartbeat:
    """Write the counts of a worker, at most twice a second."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._next = time.monotonic() + SECONDS

    def beat(self, counts: Mapping[str, int], read: int) -> None:
        """Report `counts`, and `read` bytes on top of their `bytes`."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + SECONDS
        self._path.write_text(json.dumps({**counts, "bytes": counts.get("bytes", 0) + read}), encoding="utf-8")

    def stop(self) -> None:
        """Remove the file from the folder before it is committed."""
        self._path.unlink(missing_ok=True)


def read_heartbeats(directory: Path) -> list[dict[str, int]]:
    """Latest counts of all workers below `directory`."""
    found = []
    for path in directory.glob(f".tmp-*/{NAME}"):
        try:
            found.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue  # being written, or its shard was committed just now
    return found
