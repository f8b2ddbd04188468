"""Run a stage's script as its own process, with the signals a user sends."""

import importlib.util
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve_section
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.launcher import launch_command

if TYPE_CHECKING:
    from nemotron_app.main import Request


def run_step(stage: str, verb: str, request: "Request") -> int:
    """Run one step and return its exit code."""
    return run_process(step_command(stage, verb, request))


def step_command(stage: str, verb: str, request: "Request") -> list[str]:
    """The command line of one step's process."""
    directory = stage_directory(stage)
    command = [*launch_command(f"stages.{stage}.{verb}", processes(directory, request)), "-c", request.config]
    command += request.overrides
    command += ["--dry-run"] if request.dry_run else []
    command += ["--json"] if request.json else []
    return command


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


def run_process(command: Sequence[str], stdout: IO[bytes] | None = None) -> int:
    """Run a command to its end, passing SIGTERM on; Ctrl-C reaches it through the terminal's process group."""
    process = subprocess.Popen(list(command), stdout=stdout)
    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: process.terminate()),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
    }
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
