"""Single rows of a source set, by number.

    tables = lay_out({"dapo": files}, setting, shard_bytes)
    SourceTable(tables["dapo"]).row(17)     # ([{"role": "user", "content": "Solve ... 2+2?"}], {"ground_truth": "4"})

A Parquet file only gives up whole row groups, of a million rows at times. So each source set is first read once, in
shards, and what is needed of its rows is written to plain files, where a row is two reads of known places:

    records.bin     [[{"role":"user","content":"..."}],{"ground_truth":"4"}][[{"role":...
    edges.bin       0 67 141 ...      where each record begins and the last one ends, 8 bytes each
"""

import os
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from nemotron_data.formats import fast_json
from nemotron_data.prep.plan import make_shards
from nemotron_data.prep.reader import ShardReader
from nemotron_data.prep.receipts import shard_folder
from nemotron_data.prep.shards import Setting, run_shards
from nemotron_data.sources.files import InputFile, expand, local_file
from nemotron_shared.errors import UserError

COLUMNS = ("prompt", "reward_model")
RECORDS, EDGES = "records.bin", "edges.bin"
EDGE_BYTES = 8


def source_files(place: str, split: str) -> list[InputFile]:
    """The Parquet files of a source set: of a data set of the hub, of a local folder, or the very file.

    Raises:
        UserError: there is none.
    """
    if "://" in place:
        patterns = ["*.parquet"]
        files = expand([place], split=split if place.startswith("hf://") else None)
        files = [file for file in files if file.path.endswith(".parquet")]
    else:
        folder = Path(place).expanduser()
        if folder.is_file():
            return [local_file(folder)]
        # published data sets keep a split in one of a few places; the first that holds a file counts
        names = (f"data/{split}-*", "data/*", f"{split}/*", f"default/{split}/*", "*")
        patterns = [f"{name}.parquet" for name in names]
        found = next(filter(None, (sorted(folder.glob(pattern)) for pattern in patterns)), [])
        files = [local_file(file) for file in found]
    if not files:
        raise UserError(f"{place}: no Parquet file of a source set is there", f"looked for {', '.join(patterns)}")
    return files


@dataclass(frozen=True)
class LaidOut:
    """A shard of a source set: its folder, and how many rows are in it."""

    folder: Path
    rows: int


class LayOut:
    """`Work` of the engine: the columns that placeholders need, as records that can be read one by one."""

    def run(self, reader: ShardReader, folder: Path) -> Mapping[str, Any]:
        """Write `records.bin` and `edges.bin`; gives {"rows"}.

        Raises:
            UserError: the files have no such columns.
        """
        edges = array("Q", [0])
        with (folder / RECORDS).open("wb", buffering=1 << 20) as records:
            for row in reader:
                if missing := [column for column in COLUMNS if column not in row.value]:
                    raise UserError(
                        f"{row.file}: has no column '{missing[0]}'",
                        f"data_prep.placeholder_sources names files with the columns {' and '.join(COLUMNS)}",
                    )
                records.write(fast_json.dumps([row.value[column] for column in COLUMNS], default=str))
                edges.append(records.tell())
        (folder / EDGES).write_bytes(edges.tobytes())
        return {"rows": len(edges) - 1}


def lay_out(
    sets: Mapping[str, Sequence[InputFile]], setting: Setting, shard_bytes: int
) -> dict[str, tuple[LaidOut, ...]]:
    """Lay out every source set below the folder of the run; what is there of an earlier attempt is used again."""
    tables = {}
    for name, files in sets.items():
        own = replace(setting, directory=setting.directory.parent / "placeholders" / name, on_bad_row="error")
        receipts = run_shards(make_shards([files], shard_bytes), LayOut(), own)
        tables[name] = tuple(LaidOut(shard_folder(own.directory, one.shard), one.figures["rows"]) for one in receipts)
    return tables


class SourceTable:
    """The rows of a source set, numbered from 0 in the order of its files. Nothing is opened before it is needed."""

    def __init__(self, shards: Sequence[LaidOut]) -> None:
        self._shards = [shard for shard in shards if shard.rows]
        self._upto = list(accumulate(shard.rows for shard in self._shards))

    def row(self, index: int) -> tuple[Any, Any]:
        """`prompt` and `reward_model` of a row; raises IndexError where there is no such row."""
        count = self._upto[-1] if self._upto else 0
        if not 0 <= index < count:
            raise IndexError(f"row {index} of {count:,} rows, counted from 0")
        number = bisect_right(self._upto, index)
        place = index - (self._upto[number] - self._shards[number].rows)
        records, edges = self._files[number]
        start, end = array("Q", os.pread(edges, 2 * EDGE_BYTES, place * EDGE_BYTES))
        prompt, reward = fast_json.loads(os.pread(records, end - start, start))
        return prompt, reward

    @cached_property
    def _files(self) -> list[tuple[int, int]]:
        """Descriptors of each shard's two files; they live as long as the process."""
        names = [(shard.folder / RECORDS, shard.folder / EDGES) for shard in self._shards]
        return [(os.open(records, os.O_RDONLY), os.open(edges, os.O_RDONLY)) for records, edges in names]
