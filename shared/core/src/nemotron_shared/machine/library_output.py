"""Redirect what a library or a program prints and logs to a file, with secrets redacted, and parse it.

stdout is for results, and stderr for what concerns the user.

with library_output(run.directory / "megatron.log"):
    pretrain(container, forward_step)

A `LibraryLog` says which lines, records and TensorBoard scalars of a library are which of our metrics.
"""

import logging
import os
import re
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path

from nemotron_shared.config.registry import Registry, shown
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.redaction import redact

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


@dataclass(frozen=True)
class LibraryLog:
    """How one library logs its metrics.

    Attributes:
        title: the library's name.
        lines: a word a line must contain, which is fast to search for, and the pattern to match it with. Named groups
            are metrics. `step` applies to the following lines as well, `steps` is the total, and `time` is when the
            line was written.
        records: names of JSON-lines files.
        keys: our names for the keys in those files; other keys keep theirs.
        first_step: the library's number for the first step.
        scalars: reads (metric, step, value) from a TensorBoard file, if the library logs more there.
    """

    title: str
    lines: Mapping[str, str]
    records: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    first_step: int = 1
    scalars: Callable[[Path], Iterable[tuple[str, int, float]]] | None = None


LIBRARY_LOGS: Registry[LibraryLog] = Registry(
    "library log",
    "nemotron.library_logs",
    {
        "nemotron": "nemotron_shared.tracking.progress:LOG",
        "nemo_rl": "nemotron_engines.nemo_rl.training:LOG",
        "automodel": "nemotron_engines.automodel.dialect:LOG",
    },
    lambda found: isinstance(found, LibraryLog),
    "a LibraryLog",
)


def require_usable(name: str, log: LibraryLog) -> None:
    """Refuse the log of a package whose lines and files cannot be looked for.

    Raises:
        UserError: naming it.
    """
    try:
        texts = [log.title, *log.records, *log.keys, *log.keys.values(), *log.lines, *log.lines.values()]
        wrong = [one for one in texts if not isinstance(one, str)]
        problem = f"{shown(wrong[0])} is not text" if wrong else None
        if type(log.first_step) is not int:
            problem = f"first_step is {shown(log.first_step)}, not a whole number"
        for pattern in () if wrong else log.lines.values():
            re.compile(pattern)
    except (TypeError, AttributeError, re.error) as error:
        problem = str(error)
    if problem:
        raise UserError(f"library log '{name}' of {LIBRARY_LOGS.module_of(name)}: {problem}")
