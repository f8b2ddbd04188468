"""Build an environment from a fetched folder, without a network.

    report = build(folder, Path("automodel_env"))
    report.not_built     {"mamba-ssm": "there is no nvcc on PATH, ..."}

Can be run again to resume: installed and compiled packages are kept.
"""

import json
import os
import platform
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from nemotron_cluster.airgap.cuda import compile_wheel, toolkit
from nemotron_cluster.airgap.manifest import Manifest, read_manifest, require_intact
from nemotron_cluster.airgap.uv import uv
from nemotron_shared.errors import UserError
from nemotron_shared.lock import locked
from nemotron_shared.runtime.console import say
from nemotron_shared.runtime.disk import require_room

UNPACKED = 2.5
"""Approximate ratio of the size of installed, bytecode-compiled packages to their wheels."""
PROBE = Path(__file__).with_name("probe.py")
SHOWN = ("torch", "transformers", "nemo-automodel")
"""Third-party packages to import in order to check that an environment is usable."""


@dataclass
class Report:
    """Result of a build.

    Attributes:
        imports: modules, with their version or the error that they raised.
    """

    target: str
    installed: list[str] = field(default_factory=list)
    built: list[str] = field(default_factory=list)
    not_built: dict[str, str] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether everything that was fetched is installed and can be imported."""
        return not self.not_built and not self.broken


def build(folder: Path, target: Path, architectures: tuple[str, ...] = (), jobs: int | None = None) -> Report:
    """Verify the folder, create the environment, compile packages with CUDA code, and import everything.

    Raises:
        UserError: the folder is damaged or for another machine, its Python is not available, or an installation failed.
            Compilation failures do not raise; they are listed in the report.
    """
    manifest = read_manifest(folder)
    if (here := platform.machine()) != manifest.platform:
        raise UserError(
            f"{folder} is for {manifest.platform}, and this is {here}", f"fetch again with --platform {here}"
        )
    say(f"verifying {len(manifest.files)} files")
    require_intact(folder, manifest)
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.parent / f".{target.name}.lock", wait=False):
        python = _environment(manifest, target)
        report = Report(str(target))
        _install(folder, manifest, python, report)
        _compile(folder, manifest, python, report, architectures, jobs)
        _verify(manifest, python, report)
    return report


def _environment(manifest: Manifest, target: Path) -> Path:
    """The Python of the environment, which is created if necessary."""
    python = target / "bin" / "python"
    if python.exists():
        asked = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False)
        if (there := answer.stdout.strip()) != manifest.python:
            what = f"{target} has Python {there or 'that does not start'}, and the folder is for {manifest.python}"
            raise UserError(what, "name another --target, or remove that folder")
        return python
    if target.exists() and any(target.iterdir()):
        raise UserError(f"{target} is there and no environment", "name another --target, or remove it")
    say(f"making {target} with Python {manifest.python}")
    words = ["venv", "--quiet", "--offline", "--no-python-downloads", "--no-project", "--python", manifest.python]
    failed = f"there is no Python {manifest.python} here; load its module, or put it on PATH"
    uv([*words, target], failed)
    return python


def _install(folder: Path, manifest: Manifest, python: Path, report: Report) -> None:
    """Install every wheel at its locked version and digest. uv skips what is already installed."""
    wheels = [each for each in manifest.packages if each.kind != "compiled"]
    if not wheels:
        return
    require_room(python.parent, int(UNPACKED * sum(manifest.files[each.file].bytes for each in wheels)), "installing")
    say(f"installing {len(wheels)} wheels and compiling them to bytecode")
    with TemporaryDirectory() as scratch:
        listed = Path(scratch, "requirements.txt")
        lines = [f"{each.name}=={each.version} --hash=sha256:{manifest.files[each.file].sha256}" for each in wheels]
        listed.write_text("\n".join(lines) + "\n", encoding="utf-8")
        words = ["--require-hashes", "--requirements", listed, "--find-links", folder / "wheels"]
        # otherwise all processes of a job compile what they import, simultaneously and on a shared file system
        _pip(python, *words, "--compile-bytecode")
    report.installed = [f"{each.name} {each.version}" for each in wheels]


def _pip(python: Path, *words: str | Path) -> None:
    quiet = ["--quiet", "--offline", "--no-index", "--no-deps", "--python", python]
    uv(["pip", "install", *quiet, *words], f"not installed into {python.parent.parent}")


def _compile(
    folder: Path, manifest: Manifest, python: Path, report: Report, architectures: tuple[str, ...], jobs: int | None
) -> None:
    """Compile the packages with CUDA sources; failures are recorded in the report."""
    sources = [each for each in manifest.packages if each.kind == "compiled"]
    there = _probe(python, [each.name for each in sources])["versions"]
    missing = [each for each in sources if there.get(each.name) != each.version]
    report.built += [f"{each.name} {each.version}" for each in sources if each not in missing]
    if not missing:
        return
    using = toolkit(python, architectures, jobs)
    for each in missing:
        if isinstance(using, str):
            report.not_built[each.name] = using
            continue
        try:
            wheel = compile_wheel(folder / each.file, python, using, python.parent.parent.parent)
            _pip(python, "--compile-bytecode", wheel)
            report.built.append(f"{each.name} {each.version}")
        except UserError as error:
            report.not_built[each.name] = str(error)


def _verify(manifest: Manifest, python: Path, report: Report) -> None:
    """Import the main packages with the environment's Python."""
    wanted = [each for each in manifest.packages if each.kind in ("compiled", "member") or each.name in SHOWN]
    names = [each.name for each in wanted if each.name not in report.not_built]
    say(f"importing {', '.join(names)}")
    found = _probe(python, names)
    report.imports = found["imports"]
    report.broken = found["broken"]
    expected = {each.name: each.version for each in manifest.packages if each.name not in report.not_built}
    for each in manifest.packages if report.installed else []:
        if each.name in expected and found["versions"].get(each.name) != each.version:
            report.broken.append(f"{each.name} {each.version} is not installed")


def _probe(python: Path, names: list[str]) -> dict:
    """Run the probe with an environment's Python."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    command = [python, PROBE, *names]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, env=kept, cwd=python.parent)
    if answer.returncode:
        raise UserError(
            f"{python} does not run: {answer.stderr.strip()[-500:]}", "remove the environment and build again"
        )
    return json.loads(answer.stdout.splitlines()[-1])


def lines(report: Report) -> list[str]:
    """Text output of the report."""
    shown = [f"{name}: {found}" for name, found in report.imports.items()]
    shown += [f"built: {', '.join(report.built)}"] if report.built else []
    shown += [f"NOT built: {name}: {why}" for name, why in report.not_built.items()]
    shown += [f"BROKEN: {what}" for what in report.broken]
    return shown
