"""RL data: memory of our preparation for a large JSONL file, and for a tenth of it."""

import hashlib
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import orjson

from prep_bench.contest import Contestant, compete
from prep_bench.corpus import read_texts
from prep_bench.process_tree import CommandFailed, Usage
from prep_bench.settings import REPOSITORY, Bench, artifact
from prep_bench.table import Section

QUESTION_CHARACTERS = 2000


class Problems(NamedTuple):
    """Rows of a file: their number, and SHA-256 over their questions and answers."""

    count: int
    digest: str


def run(bench: Bench, megabytes: int) -> list[Section]:
    """Run only our preparation: no peer does the same work."""
    contestants = []
    for size in (megabytes, megabytes // 10):
        source = write_problems(bench.jsonl, bench.work / f"problems-{size}.jsonl", size)
        rows = problems_in(source)
        for workers in dict.fromkeys((bench.workers, 1)):
            contestants.append(_ours(bench, source, size, workers, rows))
    notes = ["every question that went in came out with its answer, in the same order"]
    return [Section("memory of RL", compete(contestants, 1, 1, REPOSITORY), notes)]


def _ours(bench: Bench, source: Path, size: int, workers: int, rows: Problems) -> Contestant:
    def check(contestant: Contestant, usage: Usage) -> str:
        found = problems_in(artifact(contestant.output) / "train.jsonl")
        if found != rows:
            raise CommandFailed(f"{contestant.name}: {rows} went in and {found} came out")
        return f"same {found.count:,} rows"

    name = f"ours, {size:,} MB, {workers} worker{'s' * (workers > 1)}"
    settings = {"data_prep.source": source, "data_prep.workers": workers, "data_prep.holdout.rows": "null"}
    settings |= {f"data_prep.placeholder_sources.{name}": "null" for name in ("dapo", "skywork")}  # no row names them
    return bench.ours("rl", name, settings, check)


def problems_in(path: Path) -> Problems:
    state, rows = hashlib.sha256(), 0
    with path.open("rb") as file:
        for row in map(orjson.loads, file):
            state.update(orjson.dumps([row["question"], row["expected_answer"]]))
            rows += 1
    return Problems(rows, state.hexdigest())


def write_problems(corpus: Path, path: Path, megabytes: int) -> Path:
    """Write questions cut from the corpus, each with a number that makes it unique."""
    if path.is_file():
        return path
    unfinished = path.with_suffix(".unfinished")
    written = 0
    with unfinished.open("wb") as file:
        for number, text in zip(count(), _pieces(corpus), strict=False):
            row = {"question": f"Question {number}: {text}", "expected_answer": str(number % 997)}
            written += file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
            if written >= megabytes * 1_000_000:
                break
    return unfinished.rename(path)


def _pieces(corpus: Path) -> Iterator[str]:
    while True:
        for text in read_texts(corpus):
            yield from (text[i : i + QUESTION_CHARACTERS] for i in range(0, len(text), QUESTION_CHARACTERS))
