"""Commands run as a user runs them: in an empty directory, with an artifact store of their own."""

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from support import can_be_forked, run_forked

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a command in an empty directory with its own artifact store, and capture what it says."""

    def call(*command: str, ok: bool = True, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"NEMOTRON_HOME": str(tmp_path / "home")} | dict(env or {})
        if can_be_forked(command):
            result = run_forked(command, tmp_path, environment)
        else:
            result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        if ok and result.returncode:
            raise AssertionError(f"{' '.join(command)}\nexit code {result.returncode}\n{result.stdout}{result.stderr}")
        return result

    return call
