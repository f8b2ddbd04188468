"""Redirect what a library or a program prints and logs to a file, with secrets redacted.

stdout is for results, and stderr for what concerns the user.

with library_output(run.directory / "megatron.log"):
    pretrain(container, forward_step)
"""

import logging
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from io import TextIOWrapper
from pathlib import Path

from nemotron_shared.redaction import redact

PATIENCE = 10.0
"""Seconds to wait for a finished program's last lines; a process it left behind may hold the pipe open."""
FORMAT = "%(asctime)s %(name)s %(levelname)s %(message)s"


class RedactedFile(TextIOWrapper):
    """A text file that redacts secrets. Assumes a library prints a secret in a single write."""

    def write(self, text: str) -> int:
        """See the base class; returns the length of the original text."""
        super().write(redact(text))
        return len(text)


@contextmanager
def program_output(path: Path) -> Generator[int]:
    """A file descriptor whose output is appended to `path` line by line."""
    reader, writer = os.pipe()

    def copy() -> None:
        with os.fdopen(reader, encoding="utf-8", errors="replace") as lines, path.open("a", encoding="utf-8") as file:
            for line in lines:
                file.write(redact(line))
                file.flush()

    copier = threading.Thread(target=copy, daemon=True)
    copier.start()
    try:
        yield writer
    finally:
        os.close(writer)
        copier.join(PATIENCE)


@contextmanager
def library_output(path: Path) -> Generator[None]:
    """Append output to `path` inside the block, whichever handlers the library adds; then restore logging."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    with RedactedFile(path.open("ab"), encoding="utf-8") as file, redirect_stdout(file):
        handler = logging.StreamHandler(file)
        handler.setFormatter(logging.Formatter(FORMAT))
        root.handlers = [handler]
        try:
            yield
        finally:
            root.handlers = before
            root.setLevel(level)
