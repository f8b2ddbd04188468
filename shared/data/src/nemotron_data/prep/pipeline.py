"""Read rows, then split and encode them: the pipeline shared by all data preparations.

    ROWS = RowKind("documents", DIRECTORY / "config", pretrain_documents, "documents")

    inputs = open_inputs(ROWS, settings, count, task.run)      # read: the files, cut into shards
    prepared = inputs.process(DocumentWork(...), output)       # split and encode: the stage's work on each shard
    for shard in prepared.shards:                              # in the order of the input
        shard.part, shard.figures, shard.folder

Before this, a stage defines its work on one shard; afterwards, it merges the shards' files.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from nemotron_data.prep.losses import Totals, finish
from nemotron_data.prep.plan import Shard, make_shards
from nemotron_data.prep.reader import FILES_IN
from nemotron_data.prep.receipts import shard_folder
from nemotron_data.prep.sampling import sample_rows
from nemotron_data.prep.shards import Setting, Work, run_shards
from nemotron_data.sources.datasets import Part, RowKind, input_files, is_synthetic
from nemotron_data.sources.detect import head_rows
from nemotron_data.sources.input_file import InputFile, require_as_identified
from nemotron_data.sources.reading import Row
from nemotron_data.sources.text import about_documents
from nemotron_data.split import SPLITS
from nemotron_shared.config.data import PreparedSection
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.run import Run

if TYPE_CHECKING:  # importing tokenizer libraries is slow, and not every stage encodes
    from nemotron_data.encoders import BackendRequest, EncoderChoice
    from nemotron_data.tokenizers.folder import TokenizerFolder

Settings = TypeVar("Settings", bound=PreparedSection)


@dataclass(frozen=True)
class ShardResult(Generic[Settings]):
    """One finished shard: its data set, figures from the stage's work, and its files with their digests."""

    part: Part[Settings]
    folder: Path
    figures: Mapping[str, Any]
    digests: Mapping[str, str]


@dataclass(frozen=True)
class Prepared(Generic[Settings]):
    """All finished shards, in the order of the input, and totals over all of them.

    Attributes:
        rejected: file with all rows that were not used.
    """

    shards: Sequence[ShardResult[Settings]]
    totals: Totals
    rejected: Path
    announce: Callable[[str], None]

    def nothing_left(self, what: str, split: Literal["train", "test"] = "train") -> UserError:
        """Error for a stage that is left without rows in the split it needs."""
        rejected, purpose = self.totals.rejected, " for training" if split == "train" else ""
        message = f"no {what} is left{purpose}"
        if kept := self.totals.counts["rows"] - rejected.total():
            shares = ", ".join(f"{name}: {int(name == split)}" for name in SPLITS)
            remedy = f"give them to it: data_prep.split='{{{shares}}}'"
            return UserError(f"{message}: {kept:,} rows can be used, and none is in the split '{split}'", remedy)
        why = f"\n  mostly: {self.totals.main_reason(rejected)}" if rejected else ""
        remedy = "correct the rows, or the setting that leaves them out; each is listed with its reason in"
        return UserError(f"{message}{why}", f"{remedy} {self.rejected}")

    def say_splits(self, rows: Mapping[str, int]) -> None:
        """Print one line with the rows of each split, including empty splits."""
        self.announce("splits: " + ", ".join(f"{rows.get(split, 0):,} {split}" for split in SPLITS))

    def require_few_lost(self, most: float, mend: Mapping[str, str]) -> None:
        """Print a summary of the rows, and stop if more than the share `most` of them is lost.

        Args:
            mend: the setting that helps, by the reason of a loss.

        Raises:
            TooManyLost: the share is above `most`.
        """
        for name, count in self.totals.counts.items():
            if name.startswith(FILES_IN) and count:
                self.announce(f"{count:,} {name}: read as such")
        self.announce(self.totals.account())
        self.totals.require_few_lost(most, mend, self.rejected)


@dataclass(frozen=True)
class Inputs(Generic[Settings]):
    """Data sets, and the shards that they are cut into."""

    parts: Sequence[Part[Settings]]
    shards: Sequence[Shard]
    setting: Setting

    def files(self, number: int) -> list[InputFile]:
        """Files of a data set."""
        ranges = (piece for shard in self.shards if shard.part == number for piece in shard.ranges)
        return list(dict.fromkeys(piece.file for piece in ranges))

    def say_unread(
        self,
        read: Callable[[Settings], Iterable[str | None]],
        kept: Callable[[Mapping[str, Any]], bool] = lambda row: False,
    ) -> None:
        """Print a line for each data set whose first rows have fields that the stage does not use.

        Args:
            read: field names from the settings.
            kept: whether all of a row is kept, so that none of its fields is lost.
        """
        for number, part in enumerate(self.parts):
            if is_synthetic(part.settings.source):
                continue
            known = {name.lower() for name in read(part.settings) if name is not None}
            rows = (row.value for row in head_rows(self.files(number)) if isinstance(row, Row))
            names = dict.fromkeys(name for row in rows if not kept(row) for name in row)
            if unread := [name for name in names if name.lower() not in known]:
                where = f" of {part.name}" if len(self.parts) > 1 else ""
                self.setting.announce(f"fields{where} that are not read: {', '.join(unread)}")

    def choose_encoder(
        self,
        tokenizer: "TokenizerFolder",
        texts_of: Callable[[Row, Part[Settings]], Iterable[str]],
        backend: "BackendRequest",
        *,
        with_bytes: bool = False,
    ) -> "EncoderChoice":
        """Choose the fastest tokenizer library that is correct on texts sampled from the input; warn about slow ones.

        Args:
            texts_of: the texts to encode from a row; none if the row cannot be used.
            with_bytes: also find the length of each token, for loss masks.
        """
        from nemotron_data.encoders import choose_encoder

        sample = [text for shard, row in sample_rows(self.shards) for text in texts_of(row, self.parts[shard.part])]
        choice = choose_encoder(tokenizer, sample, backend, with_bytes=with_bytes)
        if line := choice.announcement():
            self.setting.announce(line)
        return choice

    def process(self, work: Work, output: Path) -> Prepared[Settings]:
        """Run the stage's work on every shard, and write a common `rejected.jsonl` into `output`.

        Raises:
            UserError: a bad row where none is allowed, or a file that is unreadable or has no rows.
        """
        receipts = run_shards(self.shards, work, self.setting)
        rejected = output / "rejected.jsonl"
        totals = finish(self.setting.directory, self.shards, receipts, rejected)
        results = [
            ShardResult(
                part=self.parts[shard.part],
                folder=shard_folder(self.setting.directory, receipt.shard),
                figures=receipt.figures,
                digests={name: entry["sha256"] for name, entry in receipt.files.items()},
            )
            for shard, receipt in zip(self.shards, receipts, strict=True)
        ]
        return Prepared(results, totals, rejected, self.setting.announce)


def open_inputs(kind: RowKind, settings: Settings, count: int, run: Run) -> Inputs[Settings]:
    """Find the files of every data set, and cut them into shards that depend only on the files.

    Args:
        count: number of rows that the built-in source makes.

    Raises:
        UserError: a file is missing, has an unknown format, or has changed since the run's inputs were recorded.
    """
    parts = kind.parts(settings)
    made = run.checkpoints / "synthetic.jsonl"
    files = [input_files(part.settings, made, kind.synthetic_rows(part.settings.source)[0], count) for part in parts]
    for some in files:
        require_as_identified(some)
    if line := about_documents([file for some in files for file in some]):
        run.say(line)
    shards = make_shards(files, settings.shard_mb << 20, settings.sample)
    # in a container or a Slurm job this process may use fewer CPUs than the machine has
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    setting = Setting(
        directory=run.checkpoints / "shards",
        identity=run.fingerprint,
        on_bad_row=settings.on_bad_row,
        workers=settings.workers or cpus,
        executor=settings.executor,
        announce=run.say,
    )
    return Inputs(parts, shards, setting)
