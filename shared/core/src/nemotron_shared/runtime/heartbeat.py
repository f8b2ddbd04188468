"""Print a line every few seconds of silence, so a slow run does not look like a hang.

[super3-rl-model] importing libraries, 0:10
[super3-rl-model] at work on step 3/45, 0:05
"""

import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from nemotron_shared.runtime import distributed
from nemotron_shared.runtime.console import clock, renew, work_at_hand

SECONDS = 5.0
LATER, LATER_SECONDS = 600.0, 60.0
"""After ten minutes, print less often to keep logs short; on a terminal each line replaces the last."""
LOOKS = 0.25
YOUNG_SECONDS = 1.0
"""Show no time for shorter activities: steps are being made, only their lines are far apart."""


@contextmanager
def heartbeat(name: str) -> Generator[None]:
    """Print what is being done, on rank 0, after `SECONDS` without any other line."""
    if distributed.rank() != 0:
        yield
        return
    work_at_hand().said = time.monotonic()  # a forked process inherits its parent's value
    ended = threading.Event()
    thread = threading.Thread(target=_beat, args=(name, ended), name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _beat(name: str, ended: threading.Event) -> None:
    began = time.monotonic()
    while not ended.wait(LOOKS):
        now, work = time.monotonic(), work_at_hand()
        pause = LATER_SECONDS if now - began > LATER and not sys.stderr.isatty() else SECONDS
        if now - work.said >= pause:
            since = now - work.since
            renew(f"[{name}] {work.what}{f', {clock(since)}' if since >= YOUNG_SECONDS else ''}")
