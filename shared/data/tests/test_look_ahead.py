"""What a dry run looks at: the first rows of files on this machine, and no more of them than a preparation reads."""

from pathlib import Path
from typing import Any

import pytest

from nemotron_data.prep.sampling import FIRST_ROWS, MOST_FILES, look_ahead
from nemotron_data.rejects import Refused
from nemotron_data.sources.datasets import Part
from nemotron_data.sources.reading import Row
from nemotron_shared.config.data import PreparedSection
from nemotron_shared.runtime.look import Looked

SECTION: dict[str, Any] = {
    "subset": None, "hub_split": None, "encoding": None, "sample": None, "on_bad_row": "error", "seed": 0,
    "max_lost": 0.05, "split": {"train": 1, "valid": 0, "test": 0}, "key_field": None, "workers": None,
    "executor": "local", "shard_mb": 32,
}  # fmt: skip
BAD = '{"bad": 1}\n'


def look(source: Any, seen: list[Row] | None = None, **settings: Any) -> Looked:
    def read(row: Row) -> None:
        if seen is not None:
            seen.append(row)
        if "bad" in row.value:
            raise Refused("a bad row", "it says so", "say nothing")

    section = PreparedSection.model_validate({**SECTION, "source": source, **settings})
    return look_ahead([Part("rows", 1.0, section)], lambda part: read)


@pytest.mark.parametrize(("before", "found"), [(FIRST_ROWS - 1, True), (FIRST_ROWS, False)])
def test_a_bad_row_among_the_first_is_told_as_the_preparation_tells_it(
    tmp_path: Path, before: int, found: bool
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("{}\n" * before + BAD)
    told = f'{file}:{before + 1}: a bad row: it says so\n  {{"bad": 1}}\n  say nothing; or correct the row, or count'
    problems = look(str(file)).problems
    assert [str(problem).startswith(told) for problem in problems] == [True] * found
    assert look(str(file), on_bad_row="reject").problems == []


def test_no_more_is_looked_at_than_a_sample_has(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n" * 2)
    (tmp_path / "b.jsonl").write_text("")
    (tmp_path / "c.jsonl").write_text("{}\n" + BAD)
    assert [look(str(tmp_path), sample=rows).problems == [] for rows in (1, 3, 4)] == [True, True, False]


def test_what_is_not_looked_at_is_said(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    for number in range(MOST_FILES + 1):
        (tmp_path / "own" / f"{number}.jsonl").write_text("{}\n")
    seen: list[Row] = []
    found = look([str(tmp_path / "own"), "s3://bucket/web/"], seen)
    assert (len(seen), found.problems) == (MOST_FILES, [])
    assert found.notes == [
        "not on this machine, so that none of its rows was looked at: s3://bucket/web/",
        "rows: of 100 of the 101 files the first rows were looked at",
    ]
    assert look("synthetic") == Looked([], [])
