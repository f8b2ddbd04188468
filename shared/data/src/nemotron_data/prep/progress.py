"""Progress line of data preparation, rewritten in place on a terminal and printed occasionally to a log.

[super3-pretrain-data]  45%  98 of 219 MB  102 MB/s  27.1M tokens, 28.2M/s  0:01 left  3 rejected (2 empty text)
"""

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Self

from nemotron_data.prep.heartbeat import read_heartbeats
from nemotron_data.prep.plan import Shard
from nemotron_data.prep.receipts import Receipt
from nemotron_shared.runtime.console import CLEAR, bar, clock, renew
from nemotron_shared.runtime.disk import size

LOG_SECONDS = 5.0
TERMINAL_SECONDS = 0.5
REASONS = 3


class Progress:
    """Sums up receipts and heartbeats."""

    def __init__(self, setting: Any, shards: Sequence[Shard]) -> None:
        self._setting = setting
        self._total = max(1, sum(shard.bytes for shard in shards))
        self._workers = min(setting.workers, len(shards)) if setting.executor == "local" else 0  # Ray has its own count
        self._done = 0
        self._counts: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()
        self._begun = time.monotonic()
        self._in_place = sys.stderr.isatty()
        self._next = self._begun + (TERMINAL_SECONDS if self._in_place else LOG_SECONDS)
        self._written = False

    def finished(self, shard: Shard, receipt: Receipt) -> None:
        """Record a finished shard."""
        self._done += shard.bytes
        self._counts.update(receipt.counts)
        self._rejected.update(receipt.rejected)
        self.show()

    def show(self) -> None:
        """Write the line if it is due."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (TERMINAL_SECONDS if self._in_place else LOG_SECONDS)
        line = self._line(now - self._begun)
        if self._in_place:
            renew(line)
            self._written = True
        else:
            self._setting.announce(line)

    def _line(self, seconds: float) -> str:
        running = Counter[str]()
        for heartbeat in read_heartbeats(self._setting.directory):
            running.update(heartbeat)
        done = min(self._done + running["bytes"], self._total)
        tokens = self._counts["tokens"] + running["tokens"]
        left = seconds * (self._total - done) / done if done else float("nan")
        parts = [
            bar(done / self._total) if self._in_place else "",
            f"{done / self._total:4.0%}",
            f"{done / 1e6:,.0f} of {self._total / 1e6:,.0f} MB",
            speed_of(done, seconds),
            f"{short(tokens)} tokens, {short(tokens / seconds)}/s" if tokens else "",
            f"{clock(left)} left" if done else "",
            rejected_text(self._rejected),
        ]
        return "  ".join(filter(None, parts))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._written:
            print(CLEAR, end="", file=sys.stderr, flush=True)
        if kind is None:
            seconds = max(1e-3, time.monotonic() - self._begun)
            tokens = f", {short(self._counts['tokens'] / seconds)} tokens/s" if self._counts["tokens"] else ""
            by = f", {self._workers} worker{'s' if self._workers > 1 else ''}" if self._workers else ""
            said = f"read {size(self._done)} in {seconds:.2f} s: {speed_of(self._done, seconds)}{tokens}{by}"
            self._setting.announce(said)


def speed_of(read: int, seconds: float) -> str:
    """Bytes per second, in a unit with enough digits."""
    speed = read / seconds
    return f"{speed / 1e6:,.0f} MB/s" if speed >= 1e6 else f"{speed / 1e3:,.0f} kB/s"


def short(number: float) -> str:
    """1,234,567 as 1.2M."""
    for least, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= least:
            return f"{number / least:.1f}{letter}"
    return f"{number:.0f}"


def rejected_text(rejected: Mapping[str, int]) -> str:
    """Summary such as "5 rejected (3 empty text, 2 malformed JSON)"; empty if nothing was rejected."""
    if not rejected:
        return ""
    most = Counter(rejected).most_common(REASONS)
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in most)
    more = ", ..." if len(rejected) > REASONS else ""
    return f"{sum(rejected.values()):,} rejected ({reasons}{more})"
