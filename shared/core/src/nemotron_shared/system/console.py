"""Terminal output: lines for people on stderr, results on stdout, and one line that updates in place.

Names, logs and answers may come from untrusted files and machines. Characters that could move the cursor, hide or
reorder text are escaped here, and nowhere else.

renew("step 10/900  1:20 left")     # on a terminal, the next line of either kind replaces it
say("stopped after step 14")
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from nemotron_shared.system.errors import Finding, printable
from nemotron_shared.system.process import as_typed, rank
from nemotron_shared.system.redaction import redact

CLEAR = "\r\x1b[2K"
BAR = 20
"""Width of a full bar, in characters."""


@dataclass
class Doing:
    """What this process is doing, for the heartbeat line."""

    what: str = "starting"
    since: float = field(default_factory=time.monotonic)
    said: float = field(default_factory=time.monotonic)
    renewed: bool = False
    """The cursor is behind a line shown by `renew`."""


_doing = Doing()


def doing(what: str) -> None:
    """Set what is being done now: `importing libraries`, `at work on step 12/900`."""
    _doing.what, _doing.since = what, time.monotonic()


def work_at_hand() -> Doing:
    """The current activity, and the time of the last line."""
    return _doing


def bar(share: float, width: int = BAR) -> str:
    """Draw a share from 0 to 1 as a bar."""
    full = round(min(max(share, 0.0), 1.0) * width)
    return "━" * full + "─" * (width - full)


def room() -> int:
    """Characters that fit on a line of the terminal behind stderr; a full line would move the cursor to the next."""
    try:
        width = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):  # not a terminal, or closed
        width = 0
    return (width or shutil.get_terminal_size().columns) - 1


def finding_lines(finding: Finding, title: str = "", indent: int = 2) -> Iterator[str]:
    """Lines of a finding for people: `title` and the message, then the remedy, indented.

    Secrets are redacted and control sequences escaped, because much of the text is output of other programs.
    """
    for number, line in enumerate(_clean(finding.message).splitlines() or [""]):
        yield f"{title}{line}" if number == 0 else line
    for line in _clean(finding.remedy or "").splitlines():
        yield f"{' ' * indent}{line.strip()}"


def _clean(text: str) -> str:
    return printable(redact(as_typed(text)), keep="\n")


def say(line: str) -> None:
    """Print a line, from rank 0 only; on a terminal it replaces a line shown by `renew`."""
    if rank() == 0:
        _doing.said, _doing.renewed = time.monotonic(), False
        # write the newline with the line: a forked process may print at the same time
        print(f"{CLEAR if sys.stderr.isatty() else ''}{_shown(line)}\n", end="", file=sys.stderr, flush=True)


def below_here(path: Path) -> Path:
    """A path, relative to the working folder if it is below that."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def from_here(path: Path) -> str:
    """A path in a line on stderr: on a terminal relative if it is below the working folder; whole in a log, which is
    read elsewhere."""
    return str(below_here(path) if sys.stderr.isatty() else path)


def tell(text: str = "", *, end: str = "\n", out: TextIO | None = None) -> None:
    """Print a result."""
    clear_renewed()
    print(printable(text, keep="\n\t"), end=end, file=out or sys.stdout, flush=True)


def tell_json(value: Any, indent: int | None = 2) -> None:
    """Print a result for programs. Characters a terminal would act on are written as JSON escapes."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    clear_renewed()
    print("".join(char if char.isprintable() or char == "\n" else _in_json(char) for char in text), flush=True)


def _in_json(char: str) -> str:
    return "\\u007f" if char == "\x7f" else json.dumps(char)[1:-1]


def pass_on(log: bytes) -> None:
    """Print another program's output: verbatim to a file, escaped on a terminal."""
    if sys.stdout.isatty():
        tell(log.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n"), end="")
    else:
        sys.stdout.buffer.write(log)
        sys.stdout.flush()


def renew(line: str) -> None:
    """Show a line that the next one replaces; where that is impossible, print it.

    It is cut to the terminal's width: only the last row of a line that wraps could be replaced.
    """
    if not sys.stderr.isatty():
        say(line)
    elif rank() == 0:
        _doing.said, _doing.renewed = time.monotonic(), True
        shown, width = _shown(line), room()
        shown = shown if len(shown) <= width else f"{shown[: width - 1]}…"
        print(f"{CLEAR}{shown}", end="", file=sys.stderr, flush=True)


def clear_renewed() -> None:
    """Remove a line shown by `renew`, before anything is printed that does not come from here."""
    if _doing.renewed and sys.stderr.isatty():
        print(CLEAR, end="", file=sys.stderr, flush=True)
    _doing.renewed = False


def _shown(line: str) -> str:
    return printable(redact(as_typed(line)), keep="\n\t")


def clock(seconds: float) -> str:
    """Format 75 seconds as 1:15."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
