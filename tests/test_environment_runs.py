"""A training on episodes that is killed or stopped goes on with the same bytes, and leaves no server behind."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import EPISODES, Forked, learn_to_call_tools, script

pytestmark = pytest.mark.slow
TIMES = {"seconds", "memory_gb", "environment/seconds", "environment/sampling_seconds",
         "environment/training_seconds"}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learnt to call tools, if not always rightly."""
    folder = tmp_path_factory.mktemp("home")
    learn_to_call_tools(folder)
    return folder / "artifacts" / "super3-sft-model"


@pytest.fixture
def store(model: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Makes a store of its own with that model."""

    def make(name: str) -> Path:
        folder = tmp_path / name
        (folder / "artifacts").mkdir(parents=True)
        (folder / "artifacts" / model.name).symlink_to(model)
        return folder

    return make


def start(home: Path, log: Path, *words: str) -> Forked:
    with log.open("w") as errors:
        environment = os.environ | {"NEMOTRON_HOME": str(home)}
        return Forked([*script("rl"), *EPISODES, *words], log.parent, environment, errors, errors, group=True)


def lines_of(home: Path) -> list[dict[str, Any]]:
    lines = (home / "artifacts/super3-rl-model/v1/metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in TIMES} for line in lines]


def test_a_killed_run_goes_on_with_the_same_bytes(run, store: Callable[[str], Path], tmp_path: Path) -> None:
    whole, killed = store("home"), store("killed")
    run(*script("rl"), *EPISODES)
    assert any(line.get("environment/turns", 0) > 1 for line in lines_of(whole))
    process = start(killed, tmp_path / "log")
    while not any(killed.glob("runs/*/checkpoints/checkpoint-2/COMPLETE")):
        assert process.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.01)
    process.kill_group()
    again = run(*script("rl"), *EPISODES, env={"NEMOTRON_HOME": str(killed)})
    assert "continuing from step 2" in again.stderr
    assert lines_of(killed) == lines_of(whole)
    kept = [next(home.glob("runs/super3-rl-model-*/completions.jsonl")) for home in (whole, killed)]
    assert kept[0].read_bytes() == kept[1].read_bytes() != b""
    files = [home / "artifacts/super3-rl-model/v1/model.safetensors" for home in (whole, killed)]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_server_outlives_a_run_that_was_stopped(
    store: Callable[[str], Path], tmp_path: Path, number: signal.Signals
) -> None:
    home, log = store("home"), tmp_path / "log"
    process = start(home, log, "train.train_iters=1000")
    while not any(path.stat().st_size > 300 for path in home.glob("runs/super3-rl-model-*/metrics.jsonl")):
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    pid = int(log.read_text().split("environment 'drawers': port")[1].split("process ")[1].split()[0])
    process.send_signal(number)
    code = process.wait()
    assert code == 130 if number == signal.SIGTERM else code != 0, log.read_text()
    assert "error: environment" not in log.read_text()
    until = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
