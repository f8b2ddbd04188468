"""Signs of life: how far each worker is, in a small file that the parent reads.

A file reaches the parent from a local process and from another machine alike, and a dead worker leaves none behind
that matters: it goes with the worker's temporary folder.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path

NAME = "heartbeat"
SECONDS = 0.5


class Heartbeat:
    """Writes the counts of a worker at most twice a second."""

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
        """Leave nothing in the folder that is about to be committed."""
        self._path.unlink(missing_ok=True)


def read_heartbeats(directory: Path) -> list[dict[str, int]]:
    """The counts of all workers below `directory`, each as of its last sign of life."""
    found = []
    for path in directory.glob(f".tmp-*/{NAME}"):
        try:
            found.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue  # being written, or its shard was committed just now
    return found
