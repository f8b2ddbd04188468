"""A log too long to be drawn whole: what the report says of it stays exact, and no extreme is lost."""

import json
import math
import random
from pathlib import Path

import pytest

from nemotron_app.charts import MAX_POINTS, moving_mean, thinned
from nemotron_app.report.training import facts, panels, points, smoothed
from nemotron_app.thinning import thinned_log
from nemotron_app.training_log import LONG, Drawn, read_log
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.metrics import read_metrics

ROWS = 30_000


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was restarted once, with spikes, losses that are not finite, and a last line cut short."""
    chance = random.Random(3)
    path = tmp_path_factory.mktemp("log") / "metrics.jsonl"
    with path.open("w") as file:
        for step in range(1, ROWS + 1):
            loss = math.nan if step in (700, 701, 20_000) else 5 / step**0.2 + chance.random() ** 4
            seconds = 0.5 * (step if step < 17_000 else step - 16_990)
            entry = {"step": step, "loss": loss, "lr": 1 / step, "tokens": 64 * step, "seconds": seconds}
            entry |= {"memory_gb": 90.0 if step == 12_345 else 40.0}
            entry |= {"valid_loss": loss + 0.1} if step % 5000 == 0 else {}
            file.write(json.dumps(entry) + "\n")
        file.write('{"step": 99999, "lo')
    return path


def test_what_is_told_of_a_long_log_is_exact(log: Path) -> None:
    whole, kept = list(read_metrics(log)), read_log(log)
    assert len(whole) == ROWS and len(kept) < ROWS / 2
    assert facts(kept) == facts(whole)
    assert facts(whole).not_finite == 3 and facts(whole).memory == 90.0
    assert all(entry == whole[entry["step"] - 1] or entry["step"] in (700, 701, 20_000) for entry in kept)


def test_every_neighbourhood_keeps_its_lowest_and_highest(log: Path) -> None:
    values = {entry["step"]: entry["loss"] for entry in read_metrics(log) if math.isfinite(entry["loss"])}
    kept = {step for step, _ in points(read_log(log), "loss")}
    checked = 0
    for start in range(1, ROWS, ROWS // 1000):
        near = {step: values[step] for step in range(start, start + ROWS // 1000) if step in values}
        assert {min(near, key=near.__getitem__), max(near, key=near.__getitem__)} <= kept
        checked += 1
    assert checked == 1000


def test_the_moving_mean_is_that_of_all_values(log: Path) -> None:
    every = [(entry["step"], entry["loss"]) for entry in read_metrics(log)]
    line = points(read_log(log), "loss")
    assert isinstance(line, Drawn)
    window, mean = line.mean
    wanted = dict(moving_mean(every, window))
    assert len(mean) > 500 and all(value == pytest.approx(wanted[step]) for step, value in mean)
    assert smoothed(line)[-1].name == f"mean of {window} points"
    large, small = panels(read_log(log))
    assert large is not None and "keeping minima and maxima" in large.note and small


def test_a_drawing_keeps_extremes_ends_and_gaps() -> None:
    line = [(float(step), float(step % 7)) for step in range(5000)]
    line[1234], line[4321] = (1234.0, 99.0), (4321.0, -99.0)
    shown = thinned(line)
    assert len(shown) <= MAX_POINTS + 2 and {line[0], line[1234], line[4321], line[-1]} <= set(shown)
    assert list(shown) == sorted(shown)
    gap = [(float(step), math.nan if 1000 <= step < 2000 else 1.0) for step in range(5000)]
    assert any(math.isnan(value) for _, value in thinned(gap))


def test_a_short_log_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step, "loss": 1.0}) + "\n" for step in range(LONG)))
    assert read_log(path) == list(read_metrics(path)) and read_log(path).means == {}
    assert read_log(tmp_path / "none.jsonl") == []


@pytest.mark.parametrize("damage", ["{damaged}", "[" * 100_000])
def test_a_damaged_line_is_named(log: Path, tmp_path: Path, damage: str) -> None:
    lines = log.read_text().splitlines(keepends=True)
    lines[9_000] = f"{damage}\n"
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(lines))
    with pytest.raises(UserError, match=r"metrics\.jsonl:9001: not valid JSON"):
        thinned_log(path, LONG)
