"""metrics.jsonl, whole and damaged: whoever goes on with a run is stopped, whoever looks at it is told."""

import json
import os
from pathlib import Path

import pytest

from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.metrics import MetricsLog, metrics_with_damage, read_metrics

STEPS = [{"step": n, "loss": 1.0 / n, "seconds": float(n)} for n in range(1, 5)]
VALIDATION = {"step": 4, "valid_loss": float("nan"), "seconds": 4.5}


def written(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def lines_of(entries: list[dict]) -> list[bytes]:
    return [json.dumps(entry).encode() for entry in entries]


def test_a_whole_log_has_no_damage(tmp_path: Path) -> None:
    file = written(tmp_path / "m", *lines_of([*STEPS, VALIDATION]))
    with file.open("ab") as more:
        more.write(b'{"step": 5, "lo')  # a kill in the middle of a line
    entries, damage = metrics_with_damage(file)
    assert ([entry["step"] for entry in entries], damage) == ([1, 2, 3, 4, 4], [])
    assert len(list(read_metrics(file))) == 5
    assert metrics_with_damage(tmp_path / "none") == ([], [])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"\xff\xfe", "not valid JSON"),
        (b"[1]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"loss": 1.0}', "without the number of a step"),
        (b'{"step": "5", "loss": 1.0}', "without the number of a step"),
        (b'{"step": 5, "loss": "low"}', "not a number in 'loss'"),
        (b'{"step": 5, "loss": null}', "not a number in 'loss'"),
        (b'{"step": 5, "loss": ' + b"9" * 400 + b"}", "not a number in 'loss'"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes, said: str) -> None:
    file = written(tmp_path / "m", *lines_of(STEPS), line)
    entries, damage = metrics_with_damage(file)
    assert (entries, damage) == (STEPS, [f"line 5 is {said}"])
    with pytest.raises(UserError, match=f"m:5: {said}"):
        list(read_metrics(file))


def test_steps_that_go_back_or_stand_twice_are_damage(tmp_path: Path) -> None:
    back = written(tmp_path / "a", *lines_of([STEPS[1], STEPS[0]]))
    assert metrics_with_damage(back)[1] == ["line 2 has step 1 after step 2"]
    twice = written(tmp_path / "b", *lines_of([STEPS[0], STEPS[1], STEPS[1]]))
    assert metrics_with_damage(twice)[1] == ["line 3 repeats step 2"]


def test_a_folder_in_its_place_is_damage(tmp_path: Path) -> None:
    assert metrics_with_damage(tmp_path) == ([], ["it cannot be read: Is a directory"])
    with pytest.raises(UserError, match="a folder, where the log"):
        list(read_metrics(tmp_path))


def test_a_pipe_in_its_place_is_damage_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    assert metrics_with_damage(tmp_path / "metrics.jsonl") == ([], ["it cannot be read: not a regular file"])
    with pytest.raises(UserError, match=r"metrics\.jsonl: not a regular file"):
        list(read_metrics(tmp_path / "metrics.jsonl"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_of_json_is_not_written(tmp_path: Path, value: float) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append(1, loss=0.5)
    with pytest.raises(UserError, match=f"step 2: reward is {value}"):
        log.append(2, loss=0.4, reward=value)
    assert [entry["step"] for entry in log.read()] == [1]
