"""Run a stage's script as its own process, with the signals a user sends."""

import importlib.util
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve_section
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.launcher import launch_command

if TYPE_CHECKING:
    from nemotron_shared.cli.main import Request


def run_step(stage: str, verb: str, request: "Request", extra: Sequence[str] = ()) -> int:
    """Run one step and return its exit code."""
    directory = stage_directory(stage)
    arguments = ["-c", request.config, *request.overrides, *extra]
    arguments += ["--dry-run"] if request.dry_run else []
    arguments += ["--json"] if request.json else []
    return run_process([*launch_command(f"stages.{stage}.{verb}", processes(directory, request)), *arguments])


def stage_directory(stage: str) -> Path:
    """Folder of an installed stage.

    Raises:
        UserError: the stage's package is not installed.
    """
    try:
        found = importlib.util.find_spec(f"stages.{stage}.train")
    except ModuleNotFoundError:
        found = None
    if found is None or found.origin is None:
        raise UserError(f"the stage '{stage}' is not installed here", f"install the package nemotron-{stage}")
    return Path(found.origin).parent


def processes(stage_directory: Path, request: "Request") -> int:
    """How many processes the config asks for; a dry run needs only one."""
    if request.dry_run:
        return 1
    composed = compose(stage_directory / "config", request.config, request.overrides)
    return int(resolve_section(composed.tree, "run")["nproc_per_node"])


def run_process(command: Sequence[str]) -> int:
    """Run a command to its end, passing SIGTERM on; Ctrl-C reaches it through the terminal's process group."""
    process = subprocess.Popen(list(command))
    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: process.terminate()),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
    }
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
