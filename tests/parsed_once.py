"""Parse each of our modules once for all commands of a test run.

A start reads the code that its step loads, and keeps what it has read in the store. Nearly every test has a store of
its own, so each of its commands would parse 150 modules again, which takes longer than preparing tiny data.
"""

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from nemotron_shared.step import records
from nemotron_shared.system.file_cache import FileCache

KNOWN: dict[tuple[Any, ...], Any] = {}


class Remembering(FileCache):
    """The cache of a store, which computes nothing that this process has computed already."""

    def get(self, file: Path | str, find_out: Callable[[Any], Any], aspect: str = "") -> Any:
        """As of the cache; a file that has changed is read again."""
        return super().get(file, partial(self._once, find_out, aspect), aspect)

    def _once(self, find_out: Callable[[Any], Any], aspect: str, file: Path | str) -> Any:
        found = os.stat(file)  # noqa: PTH116 - as the cache does it
        key = (str(file), aspect, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        if key not in KNOWN:
            KNOWN[key] = find_out(file)
        return KNOWN[key]


def install(modules: Iterable[str] = ()) -> None:
    """Use it for starts in this process and its forks, and parse what these modules load now.

    Args:
        modules: names such as `stages.sft.train`, of stages and of their engines.
    """
    records.FileCache = Remembering
    root = Path(__file__).parent.parent
    for name in modules:
        folders = name.split(".")
        if folders[0] == "stages":
            records.modules_loaded([name], None, root.joinpath(*folders[:2]), Path(os.devnull) / "none")
