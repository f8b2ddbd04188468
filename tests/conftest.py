"""What the tests of the whole project share: stages run as a user runs them, each with a home of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
STAGES = ("pretrain", "sft", "rl", "eval")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a command in an empty directory with its own artifact store, and capture what it says."""

    def call(*command: str, ok: bool = True, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"NEMOTRON_HOME": str(tmp_path / "home")} | dict(env or {})
        result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        if ok and result.returncode:
            raise AssertionError(f"{' '.join(command)}\nexit code {result.returncode}\n{result.stdout}{result.stderr}")
        return result

    return call


def script(stage: str, verb: str = "train") -> list[str]:
    """`python stages/<stage>/<verb>.py`."""
    return [sys.executable, str(ROOT / "stages" / stage / f"{verb}.py")]


def torchrun(stage: str, processes: int = 1) -> list[str]:
    """`torchrun stages/<stage>/train.py` on this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return [*launcher, str(ROOT / "stages" / stage / "train.py")]


def nemotron(*words: str) -> list[str]:
    """The console command."""
    return [sys.executable, "-m", "nemotron_shared.cli.main", *words]


def last_json(result: "subprocess.CompletedProcess[str]") -> Any:
    """What a command printed for programs."""
    return json.loads(result.stdout)
