"""A failing input made small: pieces of its files are taken out as long as it fails in the same way."""

import time
from collections.abc import Callable

from nemotron_prove.input.target import WORD, Files

SECONDS = 10.0


def smaller(files: Files, fails: Callable[[Files], bool], seconds: float = SECONDS) -> Files:
    """What is left when nothing more can go, or the time is over."""
    end = time.monotonic() + seconds
    made = dict(files)
    for name in list(made):
        without = {other: content for other, content in made.items() if other != name}
        if name != WORD and time.monotonic() < end and fails(without):
            made = without
    for name in made:
        size = max(1, len(made[name]) // 2)
        while size and time.monotonic() < end:
            made[name], less = _without_pieces(made, name, size, fails, end)
            size = size // 2 if not less or size > len(made[name]) else size
    return made


def _without_pieces(
    files: dict[str, bytes], name: str, size: int, fails: Callable[[Files], bool], end: float
) -> tuple[bytes, bool]:
    """The file without the pieces of one size that can go, and whether any could."""
    content, at, less = files[name], 0, False
    while at < len(content) and time.monotonic() < end:
        shorter = content[:at] + content[at + size :]
        if fails(files | {name: shorter}):
            content, less = shorter, True
        else:
            at += size
    return content, less
