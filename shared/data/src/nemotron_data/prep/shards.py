"""Process every shard of a plan exactly once, on any number of workers, and resume killed runs.

    receipts = run_shards(shards, work, setting)
    [super3-pretrain-data]  45%  98 of 219 MB  102 MB/s  27.1M tokens, 28.2M/s  0:01 left  3 rejected (2 empty text)

A stage's work is an object that turns the rows of one shard into files in a folder. Its output may depend on nothing
but the shard, so that the result is the same for any number of workers and after interruptions. The progress line is
rewritten in place on a terminal, and printed occasionally to a log.
"""

import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from nemotron_data.prep.losses import listed
from nemotron_data.prep.plan import Shard
from nemotron_data.prep.reader import Heartbeat, ShardReader, read_heartbeats
from nemotron_data.prep.receipts import Receipt, as_user_error, begin, commit, sweep, verified
from nemotron_shared.system.console import bar, clear_renewed, clock, renew
from nemotron_shared.system.digest import json_digest
from nemotron_shared.system.disk import size
from nemotron_shared.system.errors import UserError

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
        clear_renewed()
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
    return f"{sum(rejected.values()):,} rejected ({listed(rejected, REASONS)})" if rejected else ""


class Work(Protocol):
    """A stage's work on a shard. Picklable; heavy objects, such as a tokenizer, are loaded on first use."""

    def run(self, reader: ShardReader, folder: Path) -> Mapping[str, Any]:
        """Read every row, write files into `folder`, and return figures that JSON can hold."""
        ...


@dataclass(frozen=True)
class Setting:
    """Where and how to process shards.

    Attributes:
        directory: folder of finished shards, on a disk that all workers see.
        identity: what the result depends on besides the inputs; finished shards with another identity are not reused.
        workers: processes, or concurrent Ray tasks.
        announce: prints a line for people.
    """

    directory: Path
    identity: str
    on_bad_row: Literal["error", "reject"]
    workers: int
    executor: Literal["local", "ray"]
    announce: Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """Everything that a worker needs; picklable."""

    work: Work
    directory: Path
    plan: str
    on_bad_row: Literal["error", "reject"]

    def process(self, shard: Shard) -> Receipt:
        """Make one shard, unless it is there already.

        Raises:
            UserError: a bad row where none is allowed, an unreadable input, or a full disk.
        """
        done = verified(self.directory, shard.index, self.plan)
        if done is not None:
            return done
        folder = begin(self.directory, shard.index)
        try:
            heartbeat = Heartbeat(folder)
            with ShardReader(shard, folder, self.on_bad_row, heartbeat) as reader:
                figures = self.work.run(reader, folder)
            heartbeat.stop()
            counts, rejected = dict(reader.counts), dict(reader.rejected)
            receipt = Receipt(
                shard.index,
                self.plan,
                counts,
                rejected,
                reader.inputs,
                figures,
                cut=dict(reader.cut),
                asked=sorted(reader.asked),
                examples=reader.examples,
            )
            return commit(folder, receipt, reader.digests)
        except OSError as error:
            raise as_user_error(error, folder) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def run_shards(shards: Sequence[Shard], work: Work, setting: Setting) -> list[Receipt]:
    """Process all shards; returns receipts in the order of the shards.

    Raises:
        UserError: error of the first shard that failed, in their order; finished shards are kept.
    """
    # the caller's identity covers the contents of the files
    cuts = [
        [shard.index, shard.part, shard.limit, [(r.file.path, r.file.size, r.low, r.high) for r in shard.ranges]]
        for shard in shards
    ]
    plan = json_digest({"shards": cuts, "identity": setting.identity})
    job = Job(work, setting.directory, plan, setting.on_bad_row)
    sweep(setting.directory)
    progress = Progress(setting, shards)
    receipts: dict[int, Receipt] = {}
    errors: dict[int, UserError] = {}
    if setting.executor == "ray":
        from nemotron_data.prep.executors import run_on_ray as run
    else:
        from nemotron_data.prep.executors import run_here as run
    with progress:
        for shard, result in run(job, shards, setting, progress):
            if isinstance(result, UserError):
                errors[shard.index] = result
            else:
                receipts[shard.index] = result
                progress.finished(shard, result)
    if errors:
        raise errors[min(errors)]
    return [receipts[shard.index] for shard in shards]
