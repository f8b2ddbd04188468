"""Call uv, which resolves, builds and installs packages, with uniform error messages."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from nemotron_shared.errors import UserError
from nemotron_shared.redaction import redact

SCRATCH = ".scratch-"
"""Prefix of temporary build folders."""
LINES = 20
"""Number of output lines to show on failure: the last ones tell why."""


def uv_program() -> str:
    """Find uv, preferably the one of this environment.

    Raises:
        UserError: uv is not installed.
    """
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        raise UserError("there is no `uv` here", "install it: python3 -m pip install uv")
    return found


def uv(words: Sequence[str | Path], failed: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run uv and return its output.

    Args:
        failed: the start of the error message: what could not be done.

    Raises:
        UserError: uv failed; the message ends with its output.
    """
    variables = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"} | dict(env or {})
    command = [uv_program(), "--color", "never", *map(str, words)]
    answer = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    if answer.returncode:
        said = "\n    ".join(redact(answer.stderr).strip().splitlines()[-LINES:])
        raise UserError(f"{failed}: uv ended with exit code {answer.returncode}", f"it says:\n    {said}")
    return answer.stdout


def remove_scratch(folder: Path) -> None:
    """Remove leftovers of builds that were killed. The caller must hold the lock."""
    for left in folder.glob(f"{SCRATCH}*"):
        shutil.rmtree(left, ignore_errors=True)
