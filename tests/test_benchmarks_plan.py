"""What `nemotron plan` promises of published runs, and that its coefficients are those of the benchmark."""

import statistics
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import plan as benchmark

from nemotron_engines.estimate import speed


@pytest.fixture(scope="module")
def runs() -> list[benchmark.Run]:
    return benchmark.published()


def test_the_coefficients_are_those_that_the_published_runs_give(runs: list[benchmark.Run]) -> None:
    used = [speed.OPERATIONS, speed.TRAFFIC, speed.LAYER_SECONDS]
    assert benchmark.fitted(runs) == pytest.approx(used, rel=1e-3)


@pytest.mark.parametrize("same", [None, "model", "gpu"])
def test_runs_are_predicted_from_the_others(runs: list[benchmark.Run], same: str | None) -> None:
    said = benchmark.predicted(runs, same)
    errors = [abs(value / run.row["tokens"] - 1) for value, run in zip(said, runs, strict=True)]
    assert len(errors) >= 19
    assert statistics.median(errors) <= 0.15


def test_the_table_of_the_page_is_up_to_date(runs: list[benchmark.Run]) -> None:
    assert benchmark.judged(runs) in benchmark.PAGE.read_text(encoding="utf-8")
