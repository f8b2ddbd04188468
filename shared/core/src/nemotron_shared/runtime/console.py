"""What reaches a terminal: lines for people on stderr, results on stdout, and one line that renews itself.

Names, logs and answers come from files and machines of others. Whatever could move a cursor, hide or reorder text is
spelled out here, and nowhere else.

renew("step 10/900  1:20 left")     # on a terminal it stands until the next line, of either kind, takes its place
say("stopped after step 14")
"""

import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any, TextIO

from nemotron_shared.errors import printable
from nemotron_shared.redaction import redact
from nemotron_shared.runtime.distributed import rank

CLEAR = "\r\x1b[2K"
BAR = 20
"""Characters of a whole bar."""


@dataclass
class Doing:
    """What this process works on, for the line that says so while nothing else is said."""

    what: str = "starting"
    since: float = field(default_factory=time.monotonic)
    said: float = field(default_factory=time.monotonic)


_doing = Doing()


def doing(what: str) -> None:
    """Name what begins now: `importing libraries`, `at work on step 12/900`."""
    _doing.what, _doing.since = what, time.monotonic()


def work_at_hand() -> Doing:
    """What was named last, and when a line was shown last."""
    return _doing


def bar(share: float) -> str:
    """A share from 0 to 1 as a bar."""
    full = round(min(max(share, 0.0), 1.0) * BAR)
    return "━" * full + "─" * (BAR - full)


def say(line: str) -> None:
    """Print a line, from rank 0 only; on a terminal in place of one that renews itself."""
    if rank() == 0:
        _doing.said = time.monotonic()
        # the end of the line in the same piece: a copy of this process may say something at the same time
        print(f"{CLEAR if sys.stderr.isatty() else ''}{_shown(line)}\n", end="", file=sys.stderr, flush=True)


def tell(text: str = "", *, end: str = "\n", out: TextIO | None = None) -> None:
    """Print a result."""
    print(printable(text, keep="\n\t"), end=end, file=out or sys.stdout, flush=True)


def tell_json(value: Any, indent: int | None = 2) -> None:
    """Print a result for programs. JSON has a spelling of its own for what a terminal would obey."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    print("".join(char if char.isprintable() or char == "\n" else _in_json(char) for char in text), flush=True)


def _in_json(char: str) -> str:
    return "\\u007f" if char == "\x7f" else json.dumps(char)[1:-1]


def pass_on(log: bytes) -> None:
    """Print what another program has said: byte by byte into a file, and readable on a terminal."""
    if sys.stdout.isatty():
        tell(log.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n"), end="")
    else:
        sys.stdout.buffer.write(log)
        sys.stdout.flush()


def renew(line: str) -> None:
    """Show a line that the next one replaces; where that cannot be, print it."""
    if not sys.stderr.isatty():
        say(line)
    elif rank() == 0:
        _doing.said = time.monotonic()
        print(f"{CLEAR}{_shown(line)}", end="", file=sys.stderr, flush=True)


def _shown(line: str) -> str:
    return printable(redact(line), keep="\n\t")


def clock(seconds: float) -> str:
    """75 seconds as 1:15."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
