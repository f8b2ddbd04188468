"""Sum up the shards: rows that were kept, cut or left out, by reason, and one rejected.jsonl for all of them.

rows: 200 read; 195 kept (97.5%), 3 of them cut (1.5%: 3 answers beyond data_prep.pack_size); 5 dropped (2.5%: ...)

A preparation that lost too many rows fails.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemotron_data.prep.plan import Shard
from nemotron_data.prep.reader import REJECTED
from nemotron_data.prep.receipts import Receipt, shard_folder
from nemotron_data.sources.input_file import format_of
from nemotron_shared.system.atomic import link_or_copy, open_atomic
from nemotron_shared.system.errors import UserError

ASK_MORE = "look at them in {rejected} and correct them"


class TooManyLost(UserError):
    """Preparation finished, but lost so many rows that its result should be looked at before training."""

    exit_code = 1


@dataclass(frozen=True)
class Totals:
    """Sums over all shards. `rows` of `counts` = kept rows + all of `rejected`.

    Attributes:
        cut: kept rows that lost a part, by reason.
        asked: those reasons of either kind that settings asked for.
        examples: a file and line for each reason.
    """

    counts: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    cut: Counter[str] = field(default_factory=Counter)
    asked: set[str] = field(default_factory=set)
    examples: dict[str, str] = field(default_factory=dict)

    def as_metadata(self) -> dict[str, Any]:
        """Values for stats.json."""
        counts = {name: count for name, count in sorted(self.counts.items()) if count}
        return {**counts, "cut": dict(sorted(self.cut.items())), "rejected": dict(sorted(self.rejected.items()))}

    def account(self) -> str:
        """One-line summary of rows kept, cut and dropped."""
        rows, dropped, cut = self.counts["rows"], self.rejected.total(), self.cut.total()
        if not dropped and not cut:
            return f"rows: {rows:,} read; all kept"
        parts = [f"{rows - dropped:,} kept ({share(rows - dropped, rows)})"]
        parts += [f"{cut:,} of them cut ({share(cut, rows)}: {listed(self.cut)})"] if cut else []
        parts += [f"{dropped:,} dropped ({share(dropped, rows)}: {listed(self.rejected)})"] if dropped else []
        return f"rows: {rows:,} read; {', '.join(parts)}"

    def main_reason(self, reasons: Mapping[str, int]) -> str:
        """Most frequent reason, such as "no assistant turn, 6 rows, such as chats.jsonl:17"."""
        main, count = Counter(reasons).most_common(1)[0]
        where = f", such as {self.examples[main]}" if main in self.examples else ""
        return f"{main}, {count:,} rows{where}"

    def require_few_lost(self, most: float, mend: Mapping[str, str], rejected: Path | str = "rejected.jsonl") -> None:
        """Stop if too many rows were dropped or too many were cut.

        Args:
            most: largest share of each, from 0 to 1.
            mend: the setting that avoids the loss, by reason.
            rejected: file that lists the dropped rows.

        Raises:
            TooManyLost: a share is above `most`.
        """
        rows = self.counts["rows"]
        for what, reasons in (("dropped", self.rejected), ("cut", self.cut)):
            lost = Counter({reason: count for reason, count in reasons.items() if reason not in self.asked})
            if not rows or lost.total() <= most * rows:
                continue
            remedy = mend.get(lost.most_common(1)[0][0], ASK_MORE.format(rejected=rejected))
            if what == "cut" or self.rejected.total() < rows:  # do not suggest it if all rows are lost
                allowed = min(1.0, lost.total() / rows + 0.01)
                remedy += f"; or allow the loss: data_prep.max_lost={allowed:.2f}"
            raise TooManyLost(
                f"{lost.total():,} of {rows:,} rows ({share(lost.total(), rows)}) would be {what}, mostly:"
                f" {self.main_reason(lost)}; data_prep.max_lost allows {most:.0%}",
                remedy,
            )


def share(count: int, rows: int) -> str:
    """Percentage, such as "2.5%"."""
    return f"{count / max(1, rows):.1%}"


def listed(reasons: Mapping[str, int], shown: int = 5) -> str:
    """Most frequent reasons, such as "3 empty text, 2 malformed JSON"."""
    most = [f"{count:,} {reason}" for reason, count in Counter(reasons).most_common(shown)]
    return ", ".join(most) + (", ..." if len(reasons) > shown else "")


def finish(directory: Path, shards: Sequence[Shard], receipts: Sequence[Receipt], rejected: Path) -> Totals:
    """Write `rejected.jsonl` for all shards below `directory`, and sum up their counts.

    Raises:
        UserError: a file without rows.
    """
    # a file without rows is probably a mistake; with a limit on rows we cannot tell
    rows: defaultdict[str, int] = defaultdict(int)
    totals = Totals()
    for shard, receipt in zip(shards, receipts, strict=True):
        for part in receipt.inputs if shard.limit is None else ():
            rows[part["file"]] += part["rows"]
        totals.counts.update(receipt.counts)
        totals.rejected.update(receipt.rejected)
        totals.cut.update(receipt.cut)
        totals.asked.update(receipt.asked)
    empty = next((file for file, count in rows.items() if not count), None)
    if empty is not None:
        cut = any(part.file.rows and part.file.path == empty for shard in shards for part in shard.ranges)
        what, remedy = (
            ("no rows of the slice", "let it begin earlier")
            if cut
            else ("no rows", "remove it from the inputs, or write it again")
        )
        raise UserError(f"{empty}: holds {what}", remedy)
    join_rejected(directory, shards, receipts, rejected, totals.examples)
    return totals


def place(source: Path, target: Path) -> None:
    """Give a shard's file its final name. It is linked, not moved, so that a rerun still finds the shard whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    link_or_copy(source, target)


def join_rejected(
    directory: Path, shards: Sequence[Shard], receipts: Sequence[Receipt], path: Path, examples: dict[str, str]
) -> None:
    """Join all rejected rows in the order of the input, with line numbers of the whole file.

    Sets the first place of each reason in `examples`.
    """
    lines_so_far: Counter[tuple[int, str]] = Counter()
    with open_atomic(path, "wb") as joined:
        for shard, receipt in zip(shards, receipts, strict=True):
            before = {}
            for part, read in zip(shard.ranges, receipt.inputs, strict=True):
                file = part.file.path
                key = shard.part, file  # two data sets may read the same file
                # Parquet rows are numbered within the whole file already
                before[file] = lines_so_far[key] if format_of(file).content == "rows" else 0
                lines_so_far[key] += read["lines"]
            for reason, (file, line) in receipt.examples.items():
                examples.setdefault(reason, f"{file}:{line + before[file]}")
            with (shard_folder(directory, receipt.shard) / REJECTED).open("rb") as lines:
                for line in lines:
                    entry = json.loads(line)
                    entry["line"] += before[entry["file"]]
                    examples.setdefault(entry["reason"], f"{entry['file']}:{entry['line']}")
                    joined.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")
