"""`nemotron runs` as people and programs use it, with real processes that hold real locks."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from nemotron_app.main import dispatch
from nemotron_app.report.compare import training_in
from nemotron_shared.system.atomic import write_json
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.lock import holder_of, record_of

# A step's process: it holds the run's lock, and a first SIGTERM ends it between two steps.
WORKER = """
import pathlib, sys, time
from nemotron_shared.tracking.run import locked_run
with locked_run(pathlib.Path(sys.argv[1]), "x", "") as run, run.watched():
    print("working", flush=True)
    while not run.stop_requested:
        time.sleep(0.05)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))
    return tmp_path


def folder_of(home: Path, name: str, *, published: bool) -> Path:
    folder = home / "runs" / name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("run: {}\n")
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 3.0}\n{"step": 2, "loss": 2.51234}\n{"step": 3, "lo')
    if not published:
        write_json(folder / "inputs.json", ["super3-sft-data:v1"])
    return folder


def main(argv: list[str]) -> int:
    return dispatch(["runs", *argv])


def run(capsys, *argv: str) -> tuple[int, str]:
    code = main(list(argv))
    return code, capsys.readouterr().out


def states(capsys, *argv: str) -> list[tuple[str, str]]:
    return [(row["name"], row["state"]) for row in json.loads(run(capsys, *argv, "--json")[1])]


@pytest.fixture
def worker(home: Path):
    folder = folder_of(home, "super3-sft-model-aaaa", published=False)
    process = subprocess.Popen([sys.executable, "-c", WORKER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "working\n"
    yield process
    process.kill()
    process.wait()


def test_an_rl_run_tells_its_rewards(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(home, "super3-rl-model-aaaa", published=False)
    (folder / "metrics.jsonl").write_text('{"step": 9, "loss": 0.1, "reward": 0.5}\n')
    assert "step 9 reward 0.5 " in run(capsys)[1]
    (folder / "metrics.jsonl").write_text('{"step": 9, "valid_loss": 0.0, "valid_reward": 1.0}\n')
    assert "step 9 valid_reward 1 " in run(capsys)[1]


def test_a_damaged_last_line_is_passed_over(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(home, "super3-rl-model-aaaa", published=False)
    (folder / "metrics.jsonl").write_text('{"step": 9, "reward": 0.5}\n' + "[" * 10_000 + "\n")
    assert "step 9 reward 0.5 " in run(capsys)[1]


@pytest.mark.parametrize("put", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml", "inputs.json", "lock.json"])
def test_pipes_and_folders_in_place_of_its_files_keep_nobody_waiting(home: Path, capsys, put, name: str) -> None:
    folder = folder_of(home, "super3-rl-model-aaaa", published=False)
    (folder / name).unlink(missing_ok=True)
    put(folder / name)
    code, said = run(capsys, "--all")
    assert code == 0 and "super3-rl-model-aaaa" in said
    assert bool(training_in(folder).entries) == (name != "metrics.jsonl")
    with pytest.raises(UserError, match=r"no expectations|does not say which recipe"):
        dispatch(["check", str(folder)])
    assert dispatch(["artifacts", "gc"]) == 0


def test_where_a_linked_run_leads_nothing_is_written_or_removed(home: Path, tmp_path_factory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "config.yaml").write_text("run: {}\n")
    (home / "runs").mkdir()
    (home / "runs" / "super3-sft-model-aaaa").symlink_to(outside)
    with pytest.raises(UserError, match="super3-sft-model-aaaa: a link"):
        main(["rm", "super3-sft-model-aaaa"])
    assert [path.name for path in outside.iterdir()] == ["config.yaml"]
    assert [path.name for path in (home / "runs").iterdir()] == ["super3-sft-model-aaaa"]


def test_a_store_without_runs_says_so(home: Path, capsys) -> None:
    assert run(capsys) == (0, f"no running or stopped runs in {home / 'runs'}\n")
    assert states(capsys) == []


def test_running_and_stopped_runs_are_listed_and_finished_ones_on_request(home: Path, worker, capsys) -> None:
    folder_of(home, "super3-rl-model-bbbb", published=False)
    folder_of(home, "super3-sft-data-cccc", published=True)
    running, stopped = ("super3-sft-model-aaaa", "running"), ("super3-rl-model-bbbb", "stopped")
    assert states(capsys) == [stopped, running]
    assert states(capsys, "--all") == [stopped, ("super3-sft-data-cccc", "finished"), running]
    code, out = run(capsys)
    assert code == 0 and f"{worker.pid} on " in out and "step 2 loss 2.512" in out and "1 finished" in out
    row = json.loads(run(capsys, "list", "--json")[1])[1]
    assert row["pid"] == worker.pid and row["last"] == {"step": 2, "loss": 2.51234} and row["bytes"] > 0


def test_stop_asks_the_process_and_waits_until_it_is_gone(home: Path, worker, capsys) -> None:
    with pytest.raises(UserError, match="is running: process") as caught:
        main(["rm", "sft"])
    assert caught.value.remedy == "stop it first: nemotron runs stop super3-sft-model-aaaa"
    code, out = run(capsys, "stop", "sft", "--timeout", "120")
    assert code == 0 and f"asked process {worker.pid} to save and stop" in out and "stopped after" in out
    assert worker.wait(300) == 0
    assert states(capsys) == [("super3-sft-model-aaaa", "stopped")]
    with pytest.raises(UserError, match="no running run 'sft'"):
        main(["stop", "sft"])
    assert "removed super3-sft-model-aaaa" in run(capsys, "rm", str(home / "runs" / "super3-sft-model-aaaa"))[1]
    assert list((home / "runs").iterdir()) == []


def test_a_killed_process_leaves_a_stopped_run(home: Path, worker, capsys) -> None:
    worker.kill()
    worker.wait()
    assert states(capsys) == [("super3-sft-model-aaaa", "stopped")]


def test_a_run_of_another_machine_is_shown_and_left_alone(home: Path, worker, capsys, monkeypatch) -> None:
    lock = home / "runs" / "super3-sft-model-aaaa" / "lock"
    holder = holder_of(lock)
    assert holder is not None
    write_json(record_of(lock), asdict(replace(holder, machine="another", host="node7")))
    monkeypatch.setattr("nemotron_shared.system.lock._file_system", lambda path: "nfs4")
    assert states(capsys) == [("super3-sft-model-aaaa", "running")]
    with pytest.raises(UserError, match="runs on node7 as process") as caught:
        main(["stop", "sft"])
    assert caught.value.remedy == f"stop it there: ssh -- node7 kill -TERM {worker.pid}"
    os.kill(worker.pid, 0)


def test_what_is_ambiguous_or_unknown_is_an_error(home: Path) -> None:
    for name in ("super3-sft-model-aaaa", "super3-sft-model-bbbb"):
        folder_of(home, name, published=False)
    with pytest.raises(UserError, match="could be: super3-sft-model-aaaa, super3-sft-model-bbbb"):
        main(["rm", "sft"])
    for wanted in ("rl", "./nowhere"):
        with pytest.raises(UserError, match="no run"):
            main(["rm", wanted])
