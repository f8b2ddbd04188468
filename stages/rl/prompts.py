"""Convert a shard's rows, one file per split, and join the shards' files in constant memory.

Rows become NeMo-Gym's form (rows.py) or pairs of answers (pairs.py).

    problems.jsonl 0..32 MiB  ->  train.jsonl, valid.jsonl      {"train": {"rows": 41000}, "valid": {"rows": 820}}
    hold_out(prepared, output, Holdout(rows=1000, fraction=None))     # the last 1000 rows are val.jsonl

With a holdout of the last rows, no worker knows which rows those are, so all rows go to `rows.jsonl`.
"""

import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any

from nemotron_data.decontaminate import Decontamination
from nemotron_data.formats.rl_rows import PARAMETERS, RLRow, encode_row
from nemotron_data.prep.pipeline import Prepared
from nemotron_data.prep.reader import ShardReader
from nemotron_data.rejects import Refused
from nemotron_data.sources.datasets import Part, split_key
from nemotron_data.sources.reading import Row
from nemotron_data.split import Split
from nemotron_data.verifier.judgement import count_gold
from nemotron_shared.system.atomic import open_atomic
from nemotron_shared.system.errors import UserError
from stages.rl.pairs import pair_of
from stages.rl.placeholders import LaidOut, SourceTable, is_placeholder, resolve, source_of
from stages.rl.rows import agent_name, gym_rows
from stages.rl.schema import Holdout, RLData

ALL = "rows"
OTHER_AGENT = "another agent"
AGENT = "agent "
"""Before an agent's name: its first row is among the examples."""
WRITE_BYTES = 1 << 20


@dataclass
class PromptWork:
    """The preparation engine's `Work` for prompts.

    Attributes:
        sources: the configured source sets of placeholders, laid out; each worker opens them itself.
    """

    parts: Sequence[Part[RLData]]
    sources: dict[str, tuple[LaidOut, ...]]
    decontamination: Decontamination

    @cached_property
    def tables(self) -> dict[str, SourceTable]:
        """Source tables, opened once per process at the first placeholder."""
        return {name: SourceTable(shards) for name, shards in self.sources.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "tables"}

    def run(self, reader: ShardReader, folder: Path) -> Mapping[str, Any]:
        """Write `<split>.jsonl`, or `rows.jsonl`; returns {split: {"rows"}}."""
        settings = self.parts[reader.shard.part].settings
        split = None if settings.holdout.wanted else Split(settings.split.model_dump(), salt="questions")
        written: Counter[str] = Counter()
        files: dict[str, IO[bytes]] = {}
        with ExitStack() as stack:
            for row in reader:  # read
                for line, key, asked, agent in self.converted(row, settings, reader):
                    name = ALL if split is None else split.of(key)  # split
                    if name != "test" and not self.decontamination.keeps(reader, row, asked):
                        break
                    if agent is not None:
                        reader.examples.setdefault(f"{AGENT}{agent}", (row.file, row.line))
                    if name not in files:
                        files[name] = stack.enter_context((folder / f"{name}.jsonl").open("wb", buffering=WRITE_BYTES))
                    files[name].write(line)
                    written[name] += 1
        return {name: {"rows": count} for name, count in written.items()}

    def converted(
        self, row: Row, settings: RLData, reader: ShardReader
    ) -> list[tuple[bytes, str, Iterable[str], str | None]]:
        """Of each prompt of a row the line to write, the key that decides its split, the prompt, and its agent; none of
        a refused row."""
        try:
            value = row.value
            if settings.pairs:
                pair = pair_of(value, settings.question_field, settings.system_prompt, row.written)
                key = "" if settings.holdout.wanted else split_key(value, settings, pair.question)
                return [(encode_row(pair.row), key, [str(turn["content"]) for turn in pair.prompt], None)]
            if settings.only_agents is not None and agent_name(value, settings) not in settings.only_agents:
                reader.leave_out(row, OTHER_AGENT, asked=True)
                return []
            if is_placeholder(value):
                value = resolve(value, self.tables)
                reader.counts["placeholders resolved"] += 1
            made, *others = gym_rows(value, settings, row.written)
            if (gold := made.get("expected_answer")) is not None:
                count_gold(reader.counts, str(gold))
            if made is not value and "agent_ref" in made and PARAMETERS in value:
                reader.counts["agent_ref completed"] += 1
            # unchanged rows are written byte for byte, unless they contain a carriage return, at which some readers
            # would end the line
            raw = row.raw.strip() if made is row.value and row.raw is not None else b"\r"
            line = encode_row(made, row.value, row.written) if b"\r" in raw else raw + b"\n"
            asked = RLRow.of(made)
            key = "" if settings.holdout.wanted else split_key(value, settings, asked.question)
            more = [(encode_row(one), key, RLRow.of(one).searched(), None) for one in others]
            return [(line, key, asked.searched(), asked.agent), *more]
        except Refused as refused:
            reader.refuse_for(row, refused)
        return []


def require_usable(row: Row, settings: RLData) -> None:
    """Check a row as `PromptWork` would; for a placeholder, only the part that does not need its source set.

    Raises:
        Refused: the row cannot be used.
    """
    if settings.pairs:
        pair = pair_of(row.value, settings.question_field, settings.system_prompt)
        if not settings.holdout.wanted:
            split_key(row.value, settings, pair.question)
        return
    if settings.only_agents is not None and agent_name(row.value, settings) not in settings.only_agents:
        return
    if is_placeholder(row.value):
        given = {name for name, place in settings.placeholder_sources.model_dump().items() if place is not None}
        source_of(row.value, given)
        return
    made, *_ = gym_rows(row.value, settings, row.written)
    if not settings.holdout.wanted:
        split_key(row.value, settings, RLRow.of(made).question)


FILES = {"train": "train.jsonl", "valid": "val.jsonl", "test": "test.jsonl"}
COPY_BYTES = 1 << 20


def join_splits(prepared: Prepared[RLData], output: Path) -> Counter[str]:
    """Write the file of each split that has rows; returns the number of rows of each.

    Raises:
        UserError: no rows are left for training.
    """
    written = _rows(prepared)
    if not written["train"]:
        raise prepared.nothing_left("question")
    for split in written:
        with open_atomic(output / FILES[split]) as target:
            for shard in prepared.shards:
                if split in shard.figures:
                    _copy(shard.folder / f"{split}.jsonl", target)
    return written


def hold_out(prepared: Prepared[RLData], output: Path, holdout: Holdout) -> Counter[str]:
    """Write the last rows to val.jsonl and all others to train.jsonl; returns the number of rows of each.

    Raises:
        UserError: too few rows for both.
    """
    total = _rows(prepared)[ALL]
    train = total - rows_held_out(total, holdout)
    with ExitStack() as stack:
        files = [stack.enter_context(open_atomic(output / FILES[split])) for split in ("train", "valid")]
        seen = 0
        for shard in prepared.shards:
            rows = shard.figures.get(ALL, {"rows": 0})["rows"]
            if rows:
                left = min(rows, max(0, train - seen))  # training rows in this shard
                if left in (0, rows):
                    _copy(shard.folder / f"{ALL}.jsonl", files[0 if left else 1])
                else:
                    with (shard.folder / f"{ALL}.jsonl").open("rb") as lines:
                        files[0].writelines(islice(lines, left))
                        shutil.copyfileobj(lines, files[1], COPY_BYTES)
            seen += rows
    return Counter(train=train, valid=total - train)


def rows_held_out(total: int, holdout: Holdout) -> int:
    """Number of validation rows out of `total`; both sides get at least one.

    Raises:
        UserError: too few rows for that.
    """
    if total < 2:
        remedy = "add more rows, or split them by hash: set both keys of data_prep.holdout to null"
        raise UserError(f"too few rows to hold some out: {total}", remedy)
    if holdout.rows is None:
        assert holdout.fraction is not None, "one of the two is set"
        return min(total - 1, max(1, round(total * holdout.fraction)))
    if holdout.rows >= total:
        raise UserError(
            f"data_prep.holdout.rows={holdout.rows} leaves none of the {total:,} rows to train on",
            f"hold out at most {total - 1:,}, or a share: data_prep.holdout.fraction=0.02",
        )
    return holdout.rows


def _rows(prepared: Prepared[RLData]) -> Counter[str]:
    return sum((Counter({k: v["rows"] for k, v in shard.figures.items()}) for shard in prepared.shards), Counter())


def _copy(part: Path, target: IO[Any]) -> None:
    with part.open("rb") as source:
        shutil.copyfileobj(source, target, COPY_BYTES)
