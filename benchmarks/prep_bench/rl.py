"""Reinforcement data: the memory that our preparation needs for a large JSONL file, and for a tenth of it."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import orjson

from prep_bench.contest import Contestant, compete
from prep_bench.corpus import read_texts
from prep_bench.process_tree import CommandFailed, Usage
from prep_bench.settings import REPOSITORY, Bench, artifact
from prep_bench.table import Section

QUESTION_CHARACTERS = 2000


def run(bench: Bench, megabytes: int) -> list[Section]:
    """Ours only: there is no peer that does the same work."""
    contestants = []
    for size in (megabytes, megabytes // 10):
        source = write_problems(bench.jsonl, bench.work / f"problems-{size}.jsonl", size)
        rows = count_lines(source)
        for workers in dict.fromkeys((bench.workers, 1)):
            contestants.append(_ours(bench, source, size, workers, rows))
    notes = ["every row that went in came out"]
    return [Section("memory of RL", compete(contestants, 1, 1, REPOSITORY), notes)]


def _ours(bench: Bench, source: Path, size: int, workers: int, rows: int) -> Contestant:
    def check(contestant: Contestant, usage: Usage) -> str:
        found = count_lines(artifact(contestant.output) / "train.jsonl")
        if found != rows:
            raise CommandFailed(f"{contestant.name}: {rows:,} rows went in and {found:,} came out")
        return f"{found:,} rows"

    name = f"ours, {size:,} MB, {workers} worker{'s' * (workers > 1)}"
    return bench.ours("rl", name, {"data_prep.source": source, "data_prep.workers": workers}, check)


def count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 24), b""))


def write_problems(corpus: Path, path: Path, megabytes: int) -> Path:
    """Questions cut from the corpus, each with a number that makes it unlike all others."""
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
