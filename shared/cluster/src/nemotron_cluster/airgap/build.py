"""Build an environment from a fetched folder, without a network.

    report = build(folder, Path("automodel_env"))
    report.not_built     {"mamba-ssm": "nvcc is not on PATH, ..."}

Mamba's CUDA kernels are compiled here, for the GPUs of this machine. Problems are detected before compiling: no nvcc,
an nvcc of another CUDA version than torch's, or no C++ compiler. Can be run again to resume: installed and compiled
packages are kept.
"""

import os
import platform
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from packaging.utils import canonicalize_name

from nemotron_cluster.airgap.fetch import Manifest, read_manifest, require_intact
from nemotron_cluster.airgap.packages import SCRATCH, remove_scratch, uv
from nemotron_cluster.doctor import probe
from nemotron_cluster.doctor.packages import probe_here
from nemotron_shared.machine.memory import group_limits
from nemotron_shared.stages import STAGES
from nemotron_shared.system.console import say
from nemotron_shared.system.disk import require_room
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.lock import locked

UNPACKED = 2.5
"""Approximate ratio of the size of installed, bytecode-compiled packages to their wheels."""
SHOWN = ("torch", "transformers", "nemo-automodel")
"""Third-party packages to import in order to check that an environment is usable."""
SWITCHES = {"CAUSAL_CONV1D_FORCE_BUILD": "TRUE", "MAMBA_FORCE_BUILD": "TRUE"}
"""Without these, their setup.py first tries to download a wheel."""
JOB_BYTES = 6 << 30
"""Peak memory of one nvcc. With more parallel jobs than fit into memory, compilers get `Killed`."""
MEMORY = Path("/proc/meminfo")
WRAPPER = Path(__file__).with_name("nvcc.sh")
BUILT = "built"
"""Folder next to the environment with compiled wheels, which later environments reuse."""


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

    def lines(self) -> list[str]:
        """Text output of the report."""
        shown = [f"{name}: {found}" for name, found in self.imports.items()]
        shown += [f"built: {', '.join(self.built)}"] if self.built else []
        shown += [f"NOT built: {name}: {why}" for name, why in self.not_built.items()]
        return shown + [f"BROKEN: {what}" for what in self.broken]


def build(folder: Path, target: Path, architectures: tuple[str, ...] = (), jobs: int | None = None) -> Report:
    """Verify the folder, create the environment, compile packages with CUDA code, and import everything.

    Raises:
        UserError: the folder is damaged or for another machine, its Python is not available, or an installation failed.
            Compilation failures do not raise; they are listed in the report.
    """
    manifest = read_manifest(folder)
    if (here := platform.machine()) != manifest.platform:
        what = f"{folder} is for {manifest.platform}, and this is {here}"
        raise UserError(what, f"fetch again with --platform {here}")
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
        there = _output(str(python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
        if there != manifest.python:
            what = f"{target} has Python {there or 'that does not start'}, and the folder is for {manifest.python}"
            raise UserError(what, "name another --target, or remove that folder")
        return python
    if target.exists() and any(target.iterdir()):
        raise UserError(f"{target} is there and no environment", "name another --target, or remove it")
    say(f"making {target} with Python {manifest.python}")
    words = ["venv", "--quiet", "--offline", "--no-python-downloads", "--no-project", "--python", manifest.python]
    uv([*words, target], f"found no Python {manifest.python}; load its module, or put it on PATH")
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
        _pip(python, "--require-hashes", "--requirements", listed, "--find-links", folder / "wheels")
    report.installed = [f"{each.name} {each.version}" for each in wheels]


def _pip(python: Path, *words: str | Path) -> None:
    # without bytecode, all processes of a job compile what they import, simultaneously and on a shared file system
    options = ["--quiet", "--offline", "--no-index", "--no-deps", "--compile-bytecode", "--python", python]
    uv(["pip", "install", *options, *words], f"not installed into {python.parent.parent}")


def _compile(
    folder: Path, manifest: Manifest, python: Path, report: Report, architectures: tuple[str, ...], jobs: int | None
) -> None:
    """Compile the packages with CUDA sources; failures are recorded in the report."""
    sources = [each for each in manifest.packages if each.kind == "compiled"]
    there = _probe(python, [])[0] if sources else {}
    missing = [each for each in sources if there.get(each.name) != each.version]
    report.built += [f"{each.name} {each.version}" for each in sources if each not in missing]
    if not missing:
        return
    toolkit = find_toolkit(python, architectures, jobs)
    for each in missing:
        if isinstance(toolkit, str):
            report.not_built[each.name] = toolkit
            continue
        try:
            _pip(python, _compile_wheel(folder / each.file, python, toolkit, python.parent.parent.parent / BUILT))
            report.built.append(f"{each.name} {each.version}")
        except UserError as error:
            report.not_built[each.name] = str(error)


def _verify(manifest: Manifest, python: Path, report: Report) -> None:
    """Import the main packages with the environment's Python."""
    expected = {each.name: each for each in manifest.packages if each.name not in report.not_built}
    names = [each.name for each in expected.values() if each.kind in ("compiled", "member") or each.name in SHOWN]
    modules = {name: _module(name) for name in names}
    say(f"importing {', '.join(names)}")
    versions, imports = _probe(python, [*modules.values()])
    for name, module in modules.items():
        if "error" in imports[module]:
            report.broken.append(f"{module} of {name}: {imports[module]['error']}")
        else:
            report.imports[module] = f"{versions.get(name)} OK"
    if "available" in (torch := imports.get("torch", {})):
        report.imports["CUDA"] = f"{torch['available']} (torch is made for {torch['cuda']})"
    for each in expected.values() if report.installed else []:
        if versions.get(each.name) != each.version:
            report.broken.append(f"{each.name} {each.version} is not installed")


def _module(name: str) -> str:
    """The module to import for a package. The modules of a stage are imported with its own."""
    stage = name.removeprefix("nemotron-")
    return f"stages.{stage}.train" if stage in STAGES else name.replace("-", "_")


def _probe(python: Path, modules: list[str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Versions of all packages of an environment, and the results of importing modules there."""
    facts = probe_here(str(python), {"imports": modules}, isolated=True)
    if "error" in facts:
        raise UserError(f"{python} does not run: {facts['error']}", "remove the environment and build again")
    return {canonicalize_name(name): version for name, version in facts["packages"].items()}, facts["imports"]


@dataclass(frozen=True)
class Toolkit:
    """CUDA toolkit and build options.

    Attributes:
        home: the folder that contains `bin` and `include`.
        architectures: such as "90", without the point; if empty, all that the packages list.
    """

    home: Path
    version: str
    architectures: tuple[str, ...]
    jobs: int

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that the packages' builds read."""
        chosen = {"CUDA_HOME": str(self.home), "MAX_JOBS": str(self.jobs), "NVCC_THREADS": "1"}
        if self.architectures:
            chosen |= {
                "PYTORCH_NVCC": str(WRAPPER),
                "NEMOTRON_NVCC": str(self.home / "bin" / "nvcc"),
                "NEMOTRON_ARCHITECTURES": " ".join(self.architectures),
            }
        return chosen | SWITCHES


def find_toolkit(python: Path, architectures: tuple[str, ...], jobs: int | None) -> Toolkit | str:
    """Find the toolkit to compile with; returns an error message if something is missing.

    Args:
        python: of the environment, whose torch determines the required CUDA version.
        architectures: requested ones, such as "9.0"; if empty, those of the GPUs of this machine.
    """
    home = os.environ.get("CUDA_HOME")
    nvcc = shutil.which("nvcc", path=f"{home}/bin" if home else None)
    if nvcc is None:
        where = f"in CUDA_HOME={home}" if home else "on PATH, and CUDA_HOME is not set"
        return f"nvcc is not {where}; load the module of CUDA, or set CUDA_HOME, and run this again"
    release = re.search(r"release (\d+)\.(\d+)", _output(nvcc, "--version"))
    if release is None:
        return f"{nvcc} does not say which release it is"
    made_for = _output(str(python), "-c", "import torch; print(torch.version.cuda or '')").strip()
    if not made_for:
        return "torch is not in the environment, or is one without CUDA"
    if made_for.split(".")[0] != release[1]:
        return (
            f"torch is made for CUDA {made_for}, and {nvcc} is {release[1]}.{release[2]}; "
            f"load CUDA {made_for.split('.')[0]}, or fetch with --cuda {release[1]}"
        )
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        return "found no C++ compiler; load the module of gcc, or set CXX"
    wanted = architectures or _output("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader").split()
    chosen = tuple(sorted({each.replace(".", "") for each in wanted if re.fullmatch(r"\d+\.\d+[af]?", each)}))
    # an nvcc on PATH may be only a wrapper script
    inside = re.search(r"_HERE_=(.+)", probe.run([nvcc, "-dryrun", "-x", "cu", os.devnull])[2])
    place = Path(inside[1].strip() if inside else Path(nvcc).resolve().parent).resolve().parent
    return Toolkit(place, f"{release[1]}.{release[2]}", chosen, jobs or parallel_jobs())


def _output(*command: str) -> str:
    """Output of a program; empty if it does not exist or fails."""
    code, output, _ = probe.run([*command], patience=600)
    return output if code == 0 else ""


def _compile_wheel(source: Path, python: Path, toolkit: Toolkit, into: Path) -> Path:
    """The wheel of a package, compiled or reused from an earlier run.

    Raises:
        UserError: the build failed.
    """
    name, version = source.name.removesuffix(".tar.gz").rsplit("-", 1)
    torch = _output(str(python), "-c", "import sys, torch; print(f'{torch.__version__}-{sys.version_info.minor}')")
    key = f"torch{torch.strip()}-cuda{toolkit.version}-{'_'.join(toolkit.architectures) or 'all'}"
    folder = into / key
    remove_scratch(folder)
    if found := sorted(folder.glob(f"{name}-{version}*.whl")):
        return found[0]
    gpus = ", ".join(f"{each[:-1]}.{each[-1]}" for each in toolkit.architectures) or "every GPU that it knows"
    say(f"compiling {name} {version} with CUDA {toolkit.version} for {gpus}, {toolkit.jobs} jobs; this takes minutes")
    folder.mkdir(parents=True, exist_ok=True)
    words = ["build", "--wheel", "--offline", "--no-build-isolation", "--python", python]
    with TemporaryDirectory(dir=folder, prefix=SCRATCH) as scratch:
        path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"  # to find ninja
        failed = f"{name} {version} was not compiled"
        uv([*words, "--out-dir", scratch, source], failed, env=toolkit.environment | {"PATH": path})
        (built,) = Path(scratch).glob("*.whl")
        return built.replace(folder / built.name)


def parallel_jobs() -> int:
    """Number of parallel compilers that CPUs and memory allow: Slurm may assign only part of the node's memory."""
    free = re.search(r"MemAvailable:\s+(\d+) kB", MEMORY.read_text(encoding="utf-8") if MEMORY.is_file() else "")
    allowed = [*([int(free[1]) << 10] if free else []), *group_limits()]
    return max(1, min(len(os.sched_getaffinity(0)), min(allowed, default=JOB_BYTES) // JOB_BYTES))
