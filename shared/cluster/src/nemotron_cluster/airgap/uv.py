"""uv, which resolves, builds and installs: one way to call it and to say that it failed."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from nemotron_shared.errors import UserError
from nemotron_shared.redaction import redact

SCRATCH = ".scratch-"
"""How folders begin in which something is built."""
LINES = 20
"""Of what it says when it fails, this many are shown: the last ones tell why."""


def uv_program() -> str:
    """The one of this environment before any other.

    Raises:
        UserError: there is none.
    """
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        raise UserError("there is no `uv` here", "install it: python3 -m pip install uv")
    return found


def uv(words: Sequence[str | Path], failed: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run uv and return what it prints.

    Args:
        failed: what did not come about where it fails, for the message.

    Raises:
        UserError: it failed; the message ends with what it said.
    """
    variables = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"} | dict(env or {})
    command = [uv_program(), "--color", "never", *map(str, words)]
    answer = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    if answer.returncode:
        said = "\n    ".join(redact(answer.stderr).strip().splitlines()[-LINES:])
        raise UserError(f"{failed}: uv ended with exit code {answer.returncode}", f"it says:\n    {said}")
    return answer.stdout


def remove_scratch(folder: Path) -> None:
    """Remove what builds have left that were killed; whoever calls this holds the lock."""
    for left in folder.glob(f"{SCRATCH}*"):
        shutil.rmtree(left, ignore_errors=True)
