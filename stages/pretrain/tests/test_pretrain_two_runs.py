"""Two runs of the same command at the same time: one works, the other says so and leaves."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stages.pretrain.data_prep import main

COMMAND = ["-c", "tiny", "data_prep.synthetic_documents=20_000", "data_prep.workers=1"]


def wait_for_owner(home: Path, process: subprocess.Popen) -> None:
    """Until the record of the run's lock names its process."""
    for _ in range(12_000):  # two minutes: the machine may be busy
        if any(json.loads(lock.read_text())["pid"] == process.pid for lock in home.glob("runs/*/lock.json")):
            return
        assert process.poll() is None, "ended before it was seen"
        time.sleep(0.01)
    raise AssertionError("no lock was taken")


@pytest.mark.slow
def test_the_second_of_two_runs_stops_and_the_first_completes(tmp_path, capfd) -> None:
    command = [*COMMAND, f"run.home={tmp_path}"]
    first = subprocess.Popen([sys.executable, "-m", "stages.pretrain.data_prep", *command])
    try:
        wait_for_owner(tmp_path, first)
        os.kill(first.pid, signal.SIGSTOP)
        assert main(command) == 2
        assert f"process {first.pid} is already running this step" in capfd.readouterr().err
        os.kill(first.pid, signal.SIGCONT)
        assert first.wait(120) == 0
    finally:
        first.kill()
    assert (tmp_path / "artifacts/super3-pretrain-data/v1/manifest.json").is_file()
    assert main(command) == 0
    assert "unchanged" in capfd.readouterr().err
