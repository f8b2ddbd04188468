"""A small stage's work, for tests of the engine: it copies rows and may be told to misbehave."""

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemotron_data.prep.plan import Shard, make_shards
from nemotron_data.prep.reader import ShardReader
from nemotron_data.prep.receipts import shard_folder
from nemotron_data.prep.shards import Setting, run_shards
from nemotron_data.sources.files import expand


@dataclass
class CopyRows:
    """Writes the rows of a shard as they are; `die_once` names a file whose absence makes a worker kill itself."""

    die_once: Path | None = None
    always_die: bool = False

    def run(self, reader: ShardReader, folder: Path) -> Mapping[str, Any]:
        if self.always_die or (self.die_once is not None and reader.shard.index == 1 and not self.die_once.exists()):
            if self.die_once is not None:
                self.die_once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        kept = 0
        with (folder / "rows.jsonl").open("w") as file:
            for row in reader:
                file.write(json.dumps(row.value) + "\n")
                kept += 1
        return {"kept": kept}


def plan(paths: list[Path], shard_bytes: int = 1 << 20, limit: int | None = None) -> list[Shard]:
    return make_shards([expand(paths)], shard_bytes, limit)


def setting(directory: Path, workers: int = 1, on_bad_row: str = "reject", executor: str = "local") -> Setting:
    return Setting(directory, "test", on_bad_row, workers, executor, announce=lambda line: None)


def copy(shards: list[Shard], chosen: Setting, work: CopyRows | None = None) -> bytes:
    """Run, and give all rows back to back."""
    receipts = run_shards(shards, work or CopyRows(), chosen)
    return b"".join((shard_folder(chosen.directory, r.shard) / "rows.jsonl").read_bytes() for r in receipts)


def write_rows(path: Path, count: int, start: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(json.dumps({"text": f"row {i} " + "x" * (i % 50)}) + "\n" for i in range(start, start + count))
    )
    return path
