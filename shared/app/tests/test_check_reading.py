"""Logs as they are found: half written, damaged, coloured, started again, very large."""

import time
from pathlib import Path

import pytest
from check_logs import automodel_log, falling, gym_bar, sft_log, write_metrics

from nemotron_app.check import readings
from nemotron_app.check.readings import read
from nemotron_shared.tracking.progress import Progress
from nemotron_shared.tracking.run import Run


def test_an_unfinished_last_line_is_left_for_the_next_look(tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    log.write_text(sft_log(2, falling(2.5, 2.4, 2)) + "\n===== Step 3/50 =====\n  • Loss: 1")  # of 1.9
    assert read([log], []).values("loss") == [(1, 2.5), (2, 2.4)]
    write_metrics(tmp_path / "metrics.jsonl", [{"step": 1, "loss": 3.0}])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "loss": 2.9, "gr')
    found = read([tmp_path / "metrics.jsonl"], [])
    assert found.values("loss") == [(1, 3.0)] and found.notes == []


def test_damaged_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(
        b'{"step": 1, "loss": 3.0}\n{"step": 2, "lo\n\xff\xfe\x00\n[1]\n{"loss": 2}\n{"step": 3, "loss": 2.5}\n'
    )
    found = read([file], [])
    assert found.values("loss") == [(1, 3.0), (3, 2.5)]
    assert found.notes == [f"{file}: 4 damaged lines left out"]
    log = tmp_path / "driver.log"
    log.write_bytes(
        b"\x00\x00=== Step 1/50 ===\n\xff\xe2\x80 Loss: 2.5000\n  \xe2\x80\xa2 Loss: what\n" + b"x" * 300_000 + b"\n"
    )
    assert read([log], []).values("loss") == [(1, 2.5)]


def test_a_step_below_zero_is_damage_and_no_new_start(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "loss": NaN}\n{"step": -5, "loss": 1.0}\n{"step": 2, "loss": 2.5}\n')
    found = read([file], [])
    assert [step for step, _ in found.values("loss")] == [1, 2]
    assert found.notes == [f"{file}: 1 damaged line left out"]


def test_bars_and_colours_are_seen_through(tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    log.write_text(
        "\x1b[1m===== Step 1/50 =====\x1b[0m\r\n" + gym_bar([0, 7, 428]) + "\r\n\x1b[32m  • Loss: 2.5\x1b[0m\r\n"
    )
    found = read([log], [r"^Nothing"])
    assert [value for _, value in found.values("rollouts")] == [0, 7, 428]
    assert found.values("loss") == [(1, 2.5)] and found.steps == 50


def test_a_run_that_was_started_again_forgets_what_it_does_anew(tmp_path: Path) -> None:
    first, second = tmp_path / "1.log", tmp_path / "2.log"
    first.write_text(sft_log(30, lambda step: 2.0))
    second.write_text(sft_log(24, lambda step: 1.0, first=21))
    both = tmp_path / "both.log"
    both.write_text(first.read_text() + second.read_text())
    for files in ([first, second], [both]):
        found = read(files, [])
        assert [step for step, _ in found.values("loss")] == list(range(1, 25))
        assert found.values("loss")[19:21] == [(20, 2.0), (21, 1.0)]


def test_times_become_the_time_of_a_step(tmp_path: Path) -> None:
    log = tmp_path / "train.out"
    log.write_text(automodel_log(70, falling(2, 1, 70)))
    assert [seconds for _, seconds in read([log], []).values("step_seconds")] == [1.0] * 69
    file = tmp_path / "metrics.jsonl"  # the clock begins anew where a run goes on; a validation's time is not a step's
    clock = [(1, 0.5), (2, 1.0), (3, 0.4), (4, 1.0)]
    entries: list[dict[str, float]] = [{"step": step, "loss": 1.0, "seconds": seconds} for step, seconds in clock]
    write_metrics(file, [*entries, {"step": 4, "valid_loss": 1.0, "seconds": 9.0}])
    assert read([file], []).values("step_seconds") == [(1, 0.5), (2, 0.5), (4, pytest.approx(0.6))]


def test_the_lines_of_our_own_stages_are_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(Run(tmp_path / "run", "super3-rl-model"), log_interval=1)
    (tmp_path / "run").mkdir()
    progress.start(step=0, last=3, tokens=0)
    progress.log(1, {"loss": 3.91, "reward": 0.25, "lr": 0.003, "grad_norm": 1.0}, tokens=2_000_000)
    progress.log(2, {"loss": 3.5}, tokens=None)
    progress.log(2, {"valid_loss": 3.75, "valid_reward": 0.5}, tokens=4_000_000)
    log = tmp_path / "slurm-1.out"
    log.write_text(capsys.readouterr().err)
    found = read([log], [])
    assert found.libraries == ["a stage"] and (found.step, found.steps) == (2, 3)
    assert found.values("loss") == [(1, 3.91), (2, 3.5)] and found.values("reward") == [(1, 0.25)]
    assert found.values("valid_loss") == [(2, 3.75)] and found.values("valid_reward") == [(2, 0.5)]
    assert found.values("tokens_per_second")[0][1] > 1000


def test_of_a_very_large_log_both_ends_are_read_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readings, "LARGEST", 200_000)
    monkeypatch.setattr(readings, "PIECE", 10_000)
    log = tmp_path / "driver.log"
    middle = "".join(f"CUDA out of memory, line {number}\n" for number in range(20_000))
    log.write_text(sft_log(10, lambda step: 2.5) + middle + sft_log(50, lambda step: 1.5, first=40))
    found = read([log], ["CUDA out of memory"])
    assert found.values("loss")[0] == (1, 2.5) and found.values("loss")[-1] == (50, 1.5)
    assert 0 < found.counts["CUDA out of memory"] < 20_000
    assert len(found.notes) == 1 and "was not read" in found.notes[0]


@pytest.mark.slow
def test_a_log_of_100_mb_is_read_within_a_minute(tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    line = (
        "(DTensorPolicyWorker pid=4711, ip=10.0.0.3) step of the optimizer took 0.31 s, all is well here, nothing new\n"
    )
    with log.open("w") as file:
        for _ in range(100):
            file.write(line * (1_000_000 // len(line)))
        file.write("=== Step 7/50 ===\n  • Loss: 1.9\n")
    began = time.process_time()
    assert read([log], ["CUDA out of memory|OutOfMemoryError", "ActorDiedError"]).values("loss") == [(7, 1.9)]
    assert time.process_time() - began < 60
