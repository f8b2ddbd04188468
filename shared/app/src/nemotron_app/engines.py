"""`nemotron engine`: list the engines, and install those that need a separate environment.

    nemotron engine                                    every engine: its stages, what it needs, where it is
    nemotron engine install automodel                  make the environment .engines/automodel from uv.lock
    nemotron engine install nemo_rl --from ../nemo-rl  use this checkout, because NeMo-RL is on no registry

`nemotron super3 sft -c tiny engine=automodel` then starts in that environment.
"""

import importlib
import importlib.resources
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

from nemotron_app.wording import table_lines
from nemotron_shared.machine.environments import (
    CHECKOUT_FILE,
    ENVIRONMENTS,
    FOLDER_VARIABLE,
    SITE_PACKAGES,
    Environment,
    environment_of,
    repository,
)
from nemotron_shared.stages import STAGES
from nemotron_shared.system.atomic import write_text
from nemotron_shared.system.console import say, tell
from nemotron_shared.system.errors import UserError, did_you_mean
from nemotron_shared.system.process import as_typed

MISSING = """
import importlib.util, sys
for name in sys.argv[1:]:
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    if found is None:
        print(name)
"""
"""Run by an environment's own Python: print which of the given modules it cannot find."""


@click.group("engine", invoke_without_command=True, help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
def command() -> int | None:
    """See the module docstring."""
    return None if click.get_current_context().invoked_subcommand else show()


@command.command("list")
def list_() -> int:
    """List the engines (the default)."""
    return show()


@command.command("install")
@click.argument("name")
@click.option("--from", "source", metavar="CHECKOUT", type=click.Path(path_type=Path), help="sources of NeMo-RL")
def install_(name: str, source: Path | None) -> int:
    """Create or update the environment of an engine."""
    return install(name, source)


def stages_of_engines() -> dict[str, list[str]]:
    """Engines of the installed stages (including third-party ones), and the stages that offer each."""
    found: dict[str, list[str]] = {}
    for stage in STAGES:
        try:
            table = importlib.import_module(f"stages.{stage}.engines").ENGINES
        except ModuleNotFoundError:  # stage not installed
            continue
        for name in table.places():
            found.setdefault(name, []).append(stage)
    return found


def show() -> int:
    """Print the table of engines."""
    rows = []
    others = {each.name: list(each.used_by) for each in ENVIRONMENTS if not each.engines}
    for name, stages in (stages_of_engines() | others).items():
        environment = environment_of(name)
        if environment is None:
            try:
                where = f"here: {name} {version(name)}"
            except PackageNotFoundError:  # engine of another package, whose distribution has a different name
                where = "here"
        else:
            versions = _as_text(environment.versions())
            if environment.is_here:
                where = f"here: {_as_text({package: version(package) for package in environment.packages})}"
            elif environment.programs:
                where = f"{environment.folder}: {versions}"
            elif gone := environment.lost:
                where = f"takes code from {gone}, which is gone: {environment.install}"
            elif versions:
                where = f"in part ({versions}): {environment.install}"
            else:
                where = f"no: {environment.install}"
        rows.append((name, ", ".join(stages), environment.needs if environment else "", where))
    lines = table_lines(("engine", "stages", "needs", "installed"), rows, spare=("needs", "stages"))
    tell(as_typed("\n".join(lines)))
    return 0


def install(name: str, source: Path | None) -> int:
    """Create the environment of an engine, and check that its packages are installed.

    Raises:
        UserError: unknown engine, no lock file, a system or Python that its packages do not support, or uv failed.
    """
    environment, root = _installable(name)
    checkout = _checkout(environment, source)
    python, folder = find_python(environment), environment.folder
    assert folder is not None
    variables = {key: value for key, value in os.environ.items() if key not in {"VIRTUAL_ENV", "UV_PYTHON"}}
    variables["UV_PROJECT_ENVIRONMENT"] = str(folder)
    add = ["uv", "pip", "install", "--quiet", "--python", str(folder)]
    if environment.requirements:
        module, file = environment.requirements
        say(f"making {folder} from {file}")
        with importlib.resources.as_file(importlib.resources.files(module) / file) as requirements:
            commands = [["uv", "venv", "--quiet", _what_to_keep(environment), "--python", python, str(folder)]]
            commands.append([*add, *environment.options, "--requirements", str(requirements)])
    else:
        say(f"making {folder} from uv.lock; the first time this fetches some gigabytes")
        commands = [["uv", "sync", "--frozen", "--quiet", "--python", python, *environment.sync]]
    if environment.unlocked:
        commands.append([*add, *environment.unlocked])
    for command in commands:
        if code := subprocess.run(command, cwd=root, env=variables, check=False).returncode:
            raise UserError(
                f"uv ended with exit code {code}, and {folder} is not complete",
                f"fix the problem that uv reports above, then continue with: {environment.install}",
            )
    if checkout is not None:  # refuse lines in such a file, because Python adds them to its import path
        for site in folder.glob(SITE_PACKAGES):
            write_text(site / CHECKOUT_FILE, f"{checkout}\n")
    # uv skips packages whose marker excludes this Python or system, without an error
    answer = subprocess.run(
        [str(folder / "bin" / "python"), "-c", MISSING, *environment.modules],
        capture_output=True,
        text=True,
        check=True,
    )
    if missing := answer.stdout.split():
        raise UserError(
            f"{folder}: Python cannot import {', '.join(missing)}",
            f"remove that folder, then: {environment.install}",
        )
    say(f"installed: {_as_text(environment.versions())}")
    if environment.runs_step:
        say(f"engine={environment.engines[0]} now starts with {folder / 'bin' / 'python'}")
    return 0


def _installable(name: str) -> tuple[Environment, Path | None]:
    """Resolve `name` to an environment and the repository with its lock file; raises if it cannot be installed."""
    environment, root = environment_of(name), repository()
    if environment is None:
        if name in stages_of_engines():
            raise UserError(f"engine '{name}' does not need its own environment", "see: nemotron engine list")
        known = [known for each in ENVIRONMENTS for known in (each.name, *each.engines)]
        raise UserError(f"no engine named '{name}'", did_you_mean(name, known, "see: nemotron engine list"))
    if environment.requirements and environment.folder is None:
        raise UserError("an installed package has no folder for environments", f"set {FOLDER_VARIABLE} to one")
    if root is None and environment.requirements is None:
        raise UserError(
            "an environment is made from the repository's uv.lock, and this is an installed package without it",
            f"clone the repository, run `uv run {environment.install}` there, and set "
            f"{FOLDER_VARIABLE} to its folder .engines",
        )
    if platform.system() not in environment.systems:
        raise UserError(
            f"the packages of engine '{name}' exist for {environment.needs} only; this is {platform.system()}",
            "install it on such a machine; what works here: nemotron engine list",
        )
    if shutil.which("uv") is None:
        raise UserError("`uv` not found", "install it: python3 -m pip install uv")
    return environment, root


def find_python(environment: Environment) -> str:
    """Find a Python that the packages of an environment support, or have uv download one.

    Raises:
        UserError: UV_PYTHON requests another version, or none was found and uv cannot download one.
    """
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    asked = os.environ.get("UV_PYTHON")
    if asked is None and here in environment.pythons:
        return sys.executable
    wanted = asked or environment.pythons[0]
    # uv does not find pyenv versions that are installed but not activated
    for command in (["uv", "python", "find", "--no-project", wanted], ["pyenv", "prefix", wanted]):
        if shutil.which(command[0]) is None:
            continue
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        path = Path(answer.stdout.strip())
        path = path / "bin" / "python" if command[0] == "pyenv" else path
        if answer.returncode == 0 and path.is_file():
            break
    else:
        if subprocess.run(["uv", "python", "install", "--quiet", wanted], check=False).returncode == 0:
            return wanted
        raise UserError(
            f"engine environment '{environment.name}' needs {environment.needs}; Python {wanted} was not found here, "
            "and uv cannot download it",
            f"install Python {wanted} with your system's packages or with pyenv, then run the same command again",
        )
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    found = subprocess.run([str(path), "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    if found not in environment.pythons:
        raise UserError(
            f"engine environment '{environment.name}' needs {environment.needs}; UV_PYTHON={asked} is Python {found}",
            f"leave UV_PYTHON out: env -u UV_PYTHON {environment.install}",
        )
    return str(path)


def _what_to_keep(environment: Environment) -> str:
    """The option of `uv venv` for an environment that may exist: what a Python left that it no longer has must go.

    Else those packages would be taken for the ones in use.
    """
    places = environment.folder.glob("lib/python3.*") if environment.folder else ()
    former = [place.name for place in places if place.name.removeprefix("python") not in environment.pythons]
    return "--clear" if former else "--allow-existing"


def _checkout(environment: Environment, source: Path | None) -> Path | None:
    """The folder given with `--from`, if the environment needs one.

    Raises:
        UserError: it is missing, not needed, or not a suitable checkout.
    """
    if environment.source is None:
        if source is not None:
            raise UserError(f"--from: '{environment.name}' comes from the lock alone", "leave --from out")
        return None
    if source is None:
        raise UserError(
            f"{environment.source} is on no registry: it needs a checkout of its repository",
            f"say which: {environment.install} (docs/engines/{environment.name}.md has the git commands)",
        )
    folder = source.expanduser().resolve()
    if not (folder / environment.source).is_dir():
        raise UserError(
            f"--from: {folder} has no folder {environment.source}", f"give a checkout: {environment.install}"
        )
    return folder


def _as_text(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{package} {found}" for package, found in versions.items())
