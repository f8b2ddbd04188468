"""What a dry run looks at: the first rows of files on this machine, and no more of them than a preparation reads."""

import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nemotron_data.prep import executors
from nemotron_data.prep.sampling import FIRST_ROWS, MOST_FILES, look_ahead
from nemotron_data.rejects import Refused
from nemotron_data.sources.datasets import Part
from nemotron_data.sources.reading import Row
from nemotron_shared.config.data import PreparedSection
from nemotron_shared.system.errors import Finding, UserError, of_level

SECTION: dict[str, Any] = {
    "subset": None, "hub_split": None, "encoding": None, "sample": None, "on_bad_row": "error", "seed": 0,
    "max_lost": 0.05, "split": {"train": 1, "valid": 0, "test": 0}, "key_field": None, "workers": None,
    "executor": "local", "shard_mb": 32,
}  # fmt: skip
BAD = '{"bad": 1}\n'


def look(source: Any, seen: list[Row] | None = None, **settings: Any) -> list[Finding]:
    def read(row: Row) -> None:
        if seen is not None:
            seen.append(row)
        if "bad" in row.value:
            raise Refused("a bad row", "it says so", "say nothing")

    section = PreparedSection.model_validate({**SECTION, "source": source, **settings})
    return list(look_ahead([Part("rows", 1.0, section)], lambda part: read))


@pytest.mark.parametrize(("before", "found"), [(FIRST_ROWS - 1, True), (FIRST_ROWS, False)])
def test_a_bad_row_among_the_first_is_told_as_the_preparation_tells_it(
    tmp_path: Path, before: int, found: bool
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("{}\n" * before + BAD)
    told = f'{file}:{before + 1}: a bad row: it says so\n  {{"bad": 1}}\n  say nothing; or correct the row, or count'
    problems = look(str(file))
    assert [str(problem).startswith(told) for problem in problems] == [True] * found
    assert look(str(file), on_bad_row="reject") == []


def test_no_more_is_looked_at_than_a_sample_has(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n" * 2)
    (tmp_path / "b.jsonl").write_text("")
    (tmp_path / "c.jsonl").write_text("{}\n" + BAD)
    assert [look(str(tmp_path), sample=rows) == [] for rows in (1, 3, 4)] == [True, True, False]


def test_what_is_not_looked_at_is_said(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    for number in range(MOST_FILES + 1):
        (tmp_path / "own" / f"{number}.jsonl").write_text("{}\n")
    seen: list[Row] = []
    found = look([str(tmp_path / "own"), "s3://bucket/web/"], seen)
    assert (len(seen), of_level("problem", found)) == (MOST_FILES, [])
    assert [finding.message for finding in found] == [
        "not on this machine, so that none of its rows was looked at: s3://bucket/web/",
        "rows: of 100 of the 101 files the first rows were looked at",
    ]
    assert look("synthetic") == []


SETTING: Any = SimpleNamespace(workers=2, announce=lambda line: None)


def pretended(monkeypatch: pytest.MonkeyPatch, init: Any) -> Any:
    monkeypatch.setattr(executors, "_was_started", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ended: list[bool] = []
    exceptions = SimpleNamespace(RayError=type("RayError", (Exception,), {}))
    return SimpleNamespace(
        init=init,
        is_initialized=lambda: False,
        shutdown=lambda: ended.append(True),
        exceptions=exceptions,
        ended=ended,
        job_config=SimpleNamespace(JobConfig=lambda _py_driver_sys_path: _py_driver_sys_path),
        get_runtime_context=lambda: SimpleNamespace(gcs_address="10.77.0.11:6379"),
    )


@pytest.mark.parametrize(
    "error",
    [
        Exception("The current node timed out during startup. This could happen because ..."),
        RuntimeError("Failed to start GCS.  Last 0 lines of error files:\n.Please check ..."),
        TimeoutError("Timed out while waiting for the GCS port file"),
    ],
)
def test_a_start_that_takes_too_long_is_one_error(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def init(**settings: Any) -> None:
        raise error

    ray = pretended(monkeypatch, init)
    with pytest.raises(UserError, match=r"did not start on this machine \(\w+") as caught:
        executors._connect(ray, SETTING)
    assert "data_prep.executor=local" in str(caught.value)
    assert ray.ended, "what did start was left behind"


def test_a_fault_of_another_kind_keeps_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**settings: Any) -> None:
        raise TypeError("unexpected keyword")

    with pytest.raises(TypeError):
        executors._connect(pretended(monkeypatch, init), SETTING)


def test_sigterm_stays_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**settings: Any) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))  # as Ray's does

    before = signal.getsignal(signal.SIGTERM)
    assert not executors._connect(pretended(monkeypatch, init), SETTING)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_cluster_that_is_slow_to_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    def init(**settings: Any) -> None:
        asked.append(settings)
        if len(asked) < 3:
            raise Exception("The current node timed out during startup. This could happen because ...")

    ray = pretended(monkeypatch, init)
    monkeypatch.setenv("RAY_ADDRESS", "10.77.0.11:6379")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'code'}:")
    assert executors._connect(ray, SETTING)
    assert [(each["address"], each["job_config"]) for each in asked] == [
        ("10.77.0.11:6379", [str(tmp_path / "code")])
    ] * 3


def test_a_cluster_that_is_not_there_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def init(**settings: Any) -> None:
        asked.append(True)
        raise ConnectionError("Failed to connect to Ray cluster at 10.77.0.11:6379")

    ray = pretended(monkeypatch, init)
    monkeypatch.setenv("RAY_ADDRESS", "10.77.0.11:6379")
    with pytest.raises(UserError, match=r"no Ray cluster answers \(RAY_ADDRESS=10.77.0.11:6379\)\n") as caught:
        executors._connect(ray, SETTING)
    assert "RAY_AUTH_TOKEN_PATH" in str(caught.value)
    assert len(asked) == 1
