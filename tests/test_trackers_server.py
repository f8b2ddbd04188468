"""A training with W&B offline and a real MLflow server over SQLite: stopped, continued, and mirrored whole."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import script, short
from test_attempts import stop_after

pytestmark = pytest.mark.slow
MODEL, STEPS, PATIENCE = "super3-sft-model", 12, 300.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of an MLflow server with a database of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--backend-store-uri", f"sqlite:///{tmp_path / 'mlflow.db'}", "--host", "127.0.0.1", "--port", str(port)]
    words += ["--artifacts-destination", str(tmp_path / "artifacts"), "--workers", "1"]
    address, log = f"http://127.0.0.1:{port}", tmp_path / "server.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *words], stdout=out, stderr=out, cwd=tmp_path, process_group=0
        )
    try:
        end = time.monotonic() + PATIENCE
        while not answers(address):
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.2)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=60) as found:
            return found.status == 200
    except (urllib.error.URLError, OSError):
        return False


def test_a_training_that_was_stopped_stands_whole_in_both(run, server: str, tmp_path: Path) -> None:
    import mlflow

    home = tmp_path / "home"
    asked = [f"logger.mlflow_tracking_uri={server}", "logger.mlflow_experiment=mine", "logger.wandb_project=mine"]
    command = [*script("sft"), *short("sft"), f"train.train_iters={STEPS}", "checkpoint.save_interval=100", *asked]
    stop_after(4, command, home, tmp_path, {"WANDB_MODE": "offline"})
    client = mlflow.MlflowClient(tracking_uri=server)
    experiment = client.get_experiment_by_name("mine")
    (stopped,) = client.search_runs([experiment.experiment_id])
    assert stopped.info.status == "KILLED"
    run(*command, env={"WANDB_MODE": "offline"})
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_id, found.info.status) == (stopped.info.run_id, "FINISHED")
    model = home / "artifacts" / MODEL / "v1"
    logged = [json.loads(line) for line in (model / "metrics.jsonl").read_text().splitlines()]
    for name in ("loss", "valid_loss", "lr", "memory_gb"):
        mirrored = {(entry.step, entry.value) for entry in client.get_metric_history(found.info.run_id, name)}
        assert mirrored >= {(entry["step"], entry[name]) for entry in logged if name in entry}, name
    steps = [entry.step for entry in client.get_metric_history(found.info.run_id, "loss")]
    assert sorted(steps) == list(range(1, STEPS + 1))  # each once
    assert found.data.tags["nemotron.reference"] == f"{MODEL}:v1"
    files = {Path(entry.path).name for entry in client.list_artifacts(found.info.run_id, f"{MODEL}-v1")}
    assert files == {"manifest.json", "metrics.jsonl", "config.json"}
    assert len(list(home.glob(f"runs/{MODEL}-*/wandb/offline-run-*/*.wandb"))) == 2  # one of each attempt
