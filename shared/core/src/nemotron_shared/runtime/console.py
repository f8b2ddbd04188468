"""Lines for people on stderr, so that stdout stays for results and `--json`; and one line that renews itself.

renew("step 10/900  1:20 left")     # on a terminal it stands until the next line, of either kind, takes its place
say("stopped after step 14")
"""

import sys
import time
from dataclasses import dataclass, field

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
    """Name what begins now: `importing libraries`, `step 12/900`."""
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
        print(f"{CLEAR if sys.stderr.isatty() else ''}{_shown(line)}", file=sys.stderr, flush=True)


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
