"""Lines for people on stderr, so that stdout stays for results and `--json`; and one line that renews itself.

renew("step 10/900  1:20 left")     # on a terminal it stands until the next line, of either kind, takes its place
say("stopped after step 14")
"""

import sys

from nemotron_shared.errors import printable
from nemotron_shared.redaction import redact
from nemotron_shared.runtime.distributed import rank

CLEAR = "\r\x1b[2K"


def say(line: str) -> None:
    """Print a line, from rank 0 only; on a terminal in place of one that renews itself."""
    if rank() == 0:
        print(f"{CLEAR if sys.stderr.isatty() else ''}{_shown(line)}", file=sys.stderr, flush=True)


def renew(line: str) -> None:
    """Show a line that the next one replaces; where that cannot be, print it."""
    if not sys.stderr.isatty():
        say(line)
    elif rank() == 0:
        print(f"{CLEAR}{_shown(line)}", end="", file=sys.stderr, flush=True)


def _shown(line: str) -> str:
    return printable(redact(line), keep="\n\t")


def clock(seconds: float) -> str:
    """75 seconds as 1:15."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
