"""Process every shard of a plan exactly once, on any number of workers, and resume killed runs.

    receipts = run_shards(shards, work, setting)

A stage's work is an object that turns the rows of one shard into files in a folder. Its output may depend on nothing
but the shard, so that the result is the same for any number of workers and after interruptions.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from nemotron_data.prep.heartbeat import Heartbeat
from nemotron_data.prep.plan import Shard
from nemotron_data.prep.progress import Progress
from nemotron_data.prep.reader import ShardReader
from nemotron_data.prep.receipts import Receipt, as_user_error, begin, commit, sweep, verified
from nemotron_shared.digest import json_digest
from nemotron_shared.errors import UserError


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
        from nemotron_data.prep.ray_executor import run_on_ray as run
    else:
        from nemotron_data.prep.local_executor import run_here as run
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
