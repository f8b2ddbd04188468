"""NeMo-RL on this machine: find its checkout, check its version, and run its programs.

A training is one driver. It starts Ray, or joins a running cluster, and Ray starts everything else; a second driver
would claim the same GPUs again.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemotron_engines.nemo_rl.settings import NeMoRLEngine
from nemotron_engines.nemo_rl.versions import (
    REPOSITORY,
    VERSIONS,
    commit_of,
    digest_of,
    load_base,
    load_bases,
    version_of,
)
from nemotron_shared.errors import UserError
from nemotron_shared.redaction import redact
from nemotron_shared.runtime.library_output import program_output
from nemotron_shared.runtime.process import end_group, ending_with_us
from nemotron_shared.runtime.run import Run

IN_CONTAINER = Path("/opt/nemo-rl")
OF_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")


@dataclass(frozen=True)
class Installation:
    """A checkout of the right version, its base config, and how to start its programs."""

    checkout: Path
    base: dict[str, Any]
    runner: str

    def command(self, program: Path | str, *arguments: str, extra: str | None = None) -> list[str]:
        """A command line that runs a Python program with NeMo-RL's interpreter."""
        if self.runner == "python":
            return [sys.executable, str(program), *arguments]
        extras = ["--extra", extra] if extra else []
        return ["uv", "run", *extras, "python", str(program), *arguments]

    def environment(self) -> dict[str, str]:
        """Our environment without torchrun's variables; the checkout is importable, for the plans in `examples`."""
        kept = {name: value for name, value in os.environ.items() if name not in OF_TORCHRUN}
        if self.runner == "uv":
            kept.pop("VIRTUAL_ENV", None)
        paths = [str(self.checkout), *filter(None, [kept.get("PYTHONPATH")])]
        return kept | {"PYTHONPATH": os.pathsep.join(paths)}


def find_installation(engine: NeMoRLEngine) -> Installation:
    """The checkout that `engine` needs.

    Raises:
        UserError: it is missing, has a different version, or `uv` is missing.
    """
    checkout = find_checkout(engine)
    # The commit may differ, as in a container with a fix on top; the base config is always compared exactly.
    wanted, commit, package = VERSIONS[engine.version], commit_of(checkout), version_of(checkout)
    if commit != wanted.commit and package != wanted.package:
        what = f"version {package}" + (f", commit {commit[:9]}" if commit else "")
        raise UserError(
            f"{checkout} is {what}, but this recipe is written for NeMo-RL {engine.version} "
            f"(version {wanted.package}, commit {wanted.commit[:9]})",
            how_to_get(engine.version),
        )
    base = load_base(checkout, engine.base)
    if digest_of(base) != load_bases(engine.version)[engine.base].digest:
        raise UserError(
            f"{checkout / engine.base} is not the file of NeMo-RL {engine.version} (changed, or another commit)",
            how_to_get(engine.version),
        )
    if engine.runner == "uv" and shutil.which("uv") is None:
        raise UserError("engine.runner: `uv` not found", "install uv, or set engine.runner=python")
    return Installation(checkout, base, engine.runner)


def find_checkout(engine: NeMoRLEngine) -> Path:
    """`engine.checkout`, the place that `nemo_rl` is imported from, or the container's."""
    if engine.checkout is not None:
        folder = Path(engine.checkout).expanduser().resolve()
        if not (folder / "nemo_rl").is_dir():
            raise UserError(f"engine.checkout: {folder} is not a NeMo-RL checkout", how_to_get(engine.version))
        return folder
    found = importlib.util.find_spec("nemo_rl")
    places = [Path(found.origin).parents[1]] if found and found.origin else []
    for place in (*places, IN_CONTAINER):
        if (place / "examples").is_dir():
            return place
    raise UserError(
        "engine nemo_rl: NeMo-RL not found (the package of that name on PyPI is empty)", how_to_get(engine.version)
    )


def how_to_get(version: str) -> str:
    """Remedy with a version's container and git command."""
    wanted = VERSIONS[version]
    return (
        f"run inside the container {wanted.container}, or:\n"
        f"    git clone --recursive {REPOSITORY} nemo-rl\n"
        f"    git -C nemo-rl checkout --recurse-submodules {wanted.commit}\n"
        "  and then: nemotron engine install nemo_rl --from nemo-rl (or set engine.checkout=nemo-rl)"
    )


PREFLIGHT = Path(__file__).with_name("preflight.py")
LACKS = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'$")
OF_UV = re.compile(r"^(?:error: |\s*× )", re.MULTILINE)
"""Start of uv's message if it cannot make an environment; the program has not started then."""


def ask(installation: Installation, log: Path, *arguments: str) -> dict[str, Any]:
    """Run `preflight.py` and return its answer.

    Raises:
        UserError: it failed; the message has the last lines of its log.
    """
    answer = run_logged(
        installation, installation.command(PREFLIGHT, *arguments), log, "NeMo-RL refuses this configuration"
    )
    return json.loads(answer.strip().splitlines()[-1])


def run_driver(
    installation: Installation, run: Run, command: Sequence[str], log: Path, watch: Callable[[], None]
) -> None:
    """Run a training to its end, with its output in `log`. `watch` is called about once a minute.

    Raises:
        UserError: it failed. The caller handles stops: on return, `run.stop_requested` may be set.
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
            # NeMo-RL does not save on a signal, so there is no point in waiting longer.
            end_group(process)
    if code and not run.stop_requested:
        raise _failure(installation, log.read_text("utf-8"), log, f"NeMo-RL ended with exit code {code}")


def run_logged(installation: Installation, command: Sequence[str], log: Path, failure: str) -> str:
    """Run a program of the checkout and return its output; also written to `log`, and its end shown on failure."""
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
    """The error for a failed program: blames its environment if that is broken, else its input."""
    if found := LACKS.search(said.strip().rpartition("\n")[2]):
        what = f"NeMo-RL's environment lacks the module '{found[1]}'"
    elif installation.runner == "uv" and "Traceback (most recent call last)" not in said and OF_UV.search(said):
        what = "uv could not make NeMo-RL's environment"
    else:
        return UserError(f"{otherwise}:\n{tail(said)}", f"the whole log: {log}")
    remedy = f"install it: nemotron engine install nemo_rl --from {installation.checkout}"
    remedy += " and set engine.runner=python" if installation.runner == "uv" else ""
    return UserError(f"{what}:\n{tail(said)}", f"{remedy}\n  the whole log: {log}")


def tail(text: str) -> str:
    """The last lines of a log, indented."""
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-12:])
