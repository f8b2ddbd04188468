"""Merge the results of shards: link files into place, and join one rejected.jsonl with line numbers per file."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from nemotron_data.prep.losses import Totals
from nemotron_data.prep.plan import Shard
from nemotron_data.prep.reader import REJECTED
from nemotron_data.prep.receipts import Receipt, shard_folder
from nemotron_data.sources.files import format_of
from nemotron_shared.atomic import link_or_copy, open_atomic
from nemotron_shared.errors import UserError


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
