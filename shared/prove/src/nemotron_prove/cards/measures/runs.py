"""Trainings that are killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from nemotron_app.replay.compare import compare
from nemotron_prove.cards.measured import Measured
from nemotron_prove.cards.measures.programs import OFFLINE, TRUST, nemotron
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.runtime.metrics import FILE

SHORT = (
    "-c", "tiny", TRUST, "train.train_iters=8", "train.eval_interval=4", "train.eval_rows=8",
    "checkpoint.save_interval=2", "data_prep.synthetic_chats=200", "logger.tensorboard=false",
)  # fmt: skip
KILLED_AT = 3
"""Lines of metrics.jsonl: behind the first checkpoint, and before the end."""


def resume(family: str, folder: Path) -> Measured:
    """Files of a model whose training was killed and went on, against those of one that was left alone."""
    for name in ("whole", "killed"):
        (folder / name).mkdir()
    command = (family, "sft", *SHORT)
    nemotron(folder / "whole", *command)
    killed = _kill(folder / "killed", command)
    nemotron(folder / "killed", *command)
    first, second = (_model(folder / name, family) for name in ("whole", "killed"))
    differing = [file.name for file in compare(first, second) if file.problem]
    segments = len(second.manifest.segments)
    figures = {
        "differing files": len(differing),
        "trainings that were not interrupted": float(segments < 2 or not killed),
    }
    return Measured(figures, 0, [f"{segments} segments", *differing])


def _model(home: Path, family: str) -> Artifact:
    return Store(home / "home").resolve("sft", family=family)


def _kill(folder: Path, command: tuple[str, ...]) -> bool:
    """Start the training, and kill it with all its processes once it has made some steps; False if it ended first."""
    environment = os.environ | OFFLINE | {"NEMOTRON_HOME": str(folder / "home")}
    process = subprocess.Popen(
        [sys.executable, "-m", "nemotron_app.main", *command], cwd=folder, env=environment, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while process.poll() is None:
        logs = list(folder.glob(f"home/runs/*/{FILE}"))
        if logs and len(logs[0].read_bytes().splitlines()) >= KILLED_AT:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.01)
    return False
