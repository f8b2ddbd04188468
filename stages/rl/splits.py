"""Put the shards' rows together, one file for each split, in the order of the input and in constant memory.

hold_out(prepared, output, Holdout(rows=1000, fraction=None))     # the last 1000 rows are val.jsonl
"""

import shutil
from collections import Counter
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import IO, Any

from nemotron_data.prep.pipeline import Prepared
from nemotron_shared.atomic import open_atomic
from nemotron_shared.errors import UserError
from stages.rl.prompts import ALL
from stages.rl.schema import Holdout, RLData

FILES = {"train": "train.jsonl", "valid": "val.jsonl", "test": "test.jsonl"}
COPY_BYTES = 1 << 20


def join_splits(prepared: Prepared[RLData], output: Path) -> Counter[str]:
    """Write the file of each split that has rows; gives the rows of each.

    Raises:
        UserError: none is left for training.
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
    """Write the last rows to val.jsonl and all others to train.jsonl; gives the rows of each.

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
                left = min(rows, max(0, train - seen))  # of this shard for training
                if left in (0, rows):
                    _copy(shard.folder / f"{ALL}.jsonl", files[0 if left else 1])
                else:
                    with (shard.folder / f"{ALL}.jsonl").open("rb") as lines:
                        files[0].writelines(islice(lines, left))
                        shutil.copyfileobj(lines, files[1], COPY_BYTES)
            seen += rows
    return Counter(train=train, valid=total - train)


def rows_held_out(total: int, holdout: Holdout) -> int:
    """How many of `total` rows are for validation: both sides have at least one.

    Raises:
        UserError: there are not enough rows to have some on both sides.
    """
    if total < 2:
        remedy = "bring more, or let the hash divide them: set both keys of data_prep.holdout to null"
        raise UserError(f"{total} rows are left, too few to hold some of them out", remedy)
    if holdout.rows is None:
        assert holdout.fraction is not None, "one of the two is set"
        return min(total - 1, max(1, round(total * holdout.fraction)))
    if holdout.rows >= total:
        raise UserError(
            f"data_prep.holdout.rows={holdout.rows}, but only {total:,} rows are left: none to train on",
            f"hold out {total - 1:,} at most, or a share of them: data_prep.holdout.fraction=0.02",
        )
    return holdout.rows


def _rows(prepared: Prepared[RLData]) -> Counter[str]:
    return sum((Counter({k: v["rows"] for k, v in shard.figures.items()}) for shard in prepared.shards), Counter())


def _copy(part: Path, target: IO[Any]) -> None:
    with part.open("rb") as source:
        shutil.copyfileobj(source, target, COPY_BYTES)
