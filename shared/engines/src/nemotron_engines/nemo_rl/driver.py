"""Start programs of NeMo-RL and wait for them: the driver of a training, a preflight, a conversion.

The driver is one process. It brings up Ray, or joins the cluster that is there, and Ray starts everything else; a
second driver beside it would want all the GPUs again.
"""

import json
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nemotron_engines.nemo_rl.installation import Installation
from nemotron_shared.errors import UserError
from nemotron_shared.redaction import redact
from nemotron_shared.runtime.library_output import program_output
from nemotron_shared.runtime.process import end_group, ending_with_us
from nemotron_shared.runtime.run import Run

PREFLIGHT = Path(__file__).with_name("preflight.py")
LACKS = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'$")
OF_UV = re.compile(r"^(?:error: |\s*× )", re.MULTILINE)
"""How uv begins to say that it could not make an environment; the program has not begun then."""


def ask(installation: Installation, log: Path, *arguments: str) -> dict[str, Any]:
    """The answer of `preflight.py`.

    Raises:
        UserError: it failed; the message has the last lines of its log.
    """
    answer = run_logged(installation, installation.command(PREFLIGHT, *arguments), log, "NeMo-RL does not take this")
    return json.loads(answer.strip().splitlines()[-1])


def run_driver(
    installation: Installation, run: Run, command: Sequence[str], log: Path, watch: Callable[[], None]
) -> None:
    """Run a training to its end; what it prints goes to `log`. `watch` is called about once a minute.

    Raises:
        UserError: it failed. Stopping is the caller's: on return `run.stop_requested` may be set.
    """
    with program_output(log) as file:
        process = subprocess.Popen(
            ending_with_us(command, group=True),
            cwd=installation.checkout,
            env=installation.environment(),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            with run.watched():
                seen = time.monotonic()
                while process.poll() is None and not run.stop_requested:
                    time.sleep(0.5)
                    if time.monotonic() - seen > 60:
                        watch()
                        seen = time.monotonic()
            code = process.poll()
        finally:
            # NeMo-RL saves nothing on a signal, so a longer wait would win nothing.
            end_group(process)
    if code and not run.stop_requested:
        raise _failure(installation, log.read_text("utf-8"), log, f"NeMo-RL ended with exit code {code}")


def run_logged(installation: Installation, command: Sequence[str], log: Path, failure: str) -> str:
    """What a program of the checkout prints; all of its output goes to `log`, and its end to the error if it fails."""
    done = subprocess.run(
        ending_with_us(command),
        cwd=installation.checkout,
        env=installation.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    log.write_text(redact(done.stdout + done.stderr), encoding="utf-8")
    if done.returncode:
        raise _failure(installation, redact(done.stderr), log, failure)
    return done.stdout


def _failure(installation: Installation, said: str, log: Path, otherwise: str) -> UserError:
    """The error of a program that failed: its environment is at fault, or else what it was given."""
    if found := LACKS.search(said.strip().rpartition("\n")[2]):
        what = f"NeMo-RL's environment lacks the module '{found[1]}'"
    elif installation.runner == "uv" and "Traceback (most recent call last)" not in said and OF_UV.search(said):
        what = "uv could not make NeMo-RL's environment"
    else:
        return UserError(f"{otherwise}:\n{tail(said)}", f"the whole log: {log}")
    remedy = f"make one: nemotron engine install nemo_rl --from {installation.checkout}"
    remedy += " and set engine.runner=python" if installation.runner == "uv" else ""
    return UserError(f"{what}:\n{tail(said)}", f"{remedy}\n  the whole log: {log}")


def tail(text: str) -> str:
    """The last lines of a log, indented."""
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-12:])
