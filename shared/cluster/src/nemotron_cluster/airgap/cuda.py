"""Compile Mamba's CUDA kernels on the machine that has the CUDA toolkit, for the GPUs of that machine.

Detects problems before compiling: no nvcc, an nvcc of another CUDA version than torch's, or no C++ compiler.
"""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from nemotron_cluster.airgap.uv import SCRATCH, remove_scratch, uv
from nemotron_shared.runtime.console import say

SWITCHES = {"CAUSAL_CONV1D_FORCE_BUILD": "TRUE", "MAMBA_FORCE_BUILD": "TRUE"}
"""Without these, their setup.py first tries to download a wheel."""
JOB_BYTES = 6 << 30
"""Peak memory of one nvcc. With more parallel jobs than fit into memory, compilers get `Killed`."""
CGROUPS, OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
WRAPPER = Path(__file__).with_name("nvcc.sh")
BUILT = "built"
"""Folder next to the environment with compiled wheels, which later environments reuse."""


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


def toolkit(python: Path, architectures: tuple[str, ...], jobs: int | None) -> Toolkit | str:
    """Find the toolkit to compile with; returns an error message if something is missing.

    Args:
        python: of the environment, whose torch determines the required CUDA version.
        architectures: requested ones, such as "9.0"; if empty, those of the GPUs of this machine.
    """
    home = os.environ.get("CUDA_HOME")
    found = shutil.which("nvcc", path=f"{home}/bin" if home else None)
    if found is None:
        where = f"in CUDA_HOME={home}" if home else "on PATH, and CUDA_HOME is not set"
        return f"there is no nvcc {where}; load the module of CUDA, or set CUDA_HOME, and run this again"
    release = re.search(r"release (\d+)\.(\d+)", _said([found, "--version"]))
    if release is None:
        return f"{found} does not say which release it is"
    made_for = _said([str(python), "-c", "import torch; print(torch.version.cuda or '')"]).strip()
    if not made_for:
        return "torch is not in the environment, or is one without CUDA"
    if made_for.split(".")[0] != release[1]:
        return (
            f"torch is made for CUDA {made_for}, and {found} is {release[1]}.{release[2]}; "
            f"load CUDA {made_for.split('.')[0]}, or fetch with --cuda {release[1]}"
        )
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        return "there is no C++ compiler; load the module of gcc, or set CXX"
    wanted = architectures or tuple(_said(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]).split())
    chosen = tuple(sorted({each.replace(".", "") for each in wanted if re.fullmatch(r"\d+\.\d+[af]?", each)}))
    return Toolkit(_home(found), f"{release[1]}.{release[2]}", chosen, jobs or _jobs())


def compile_wheel(source: Path, python: Path, using: Toolkit, into: Path) -> Path:
    """The wheel of a package, compiled or reused from an earlier run.

    Raises:
        UserError: the build failed.
    """
    name, version = re.sub(r"\.tar\.gz$", "", source.name).rsplit("-", 1)
    torch = _said([str(python), "-c", "import sys, torch; print(f'{torch.__version__}-{sys.version_info.minor}')"])
    key = f"torch{torch.strip()}-cuda{using.version}-{'_'.join(using.architectures) or 'all'}"
    folder = into / BUILT / key
    remove_scratch(folder)
    if found := sorted(folder.glob(f"{name}-{version}*.whl")):
        return found[0]
    for_what = ", ".join(f"{each[:-1]}.{each[-1]}" for each in using.architectures) or "every GPU that it knows"
    say(f"compiling {name} {version} with CUDA {using.version} for {for_what}, {using.jobs} jobs; this takes minutes")
    folder.mkdir(parents=True, exist_ok=True)
    words = ["build", "--wheel", "--offline", "--no-build-isolation", "--python", python]
    with TemporaryDirectory(dir=folder, prefix=SCRATCH) as scratch:
        # to find ninja
        variables = using.environment | {"PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
        uv([*words, "--out-dir", scratch, source], f"{name} {version} was not compiled", env=variables)
        (built,) = Path(scratch).glob("*.whl")
        return built.replace(folder / built.name)


def _home(nvcc: str) -> Path:
    """The toolkit folder of an nvcc, which on PATH may be only a wrapper script."""
    asked = subprocess.run([nvcc, "-dryrun", "-x", "cu", os.devnull], capture_output=True, text=True, check=False)
    told = re.search(r"_HERE_=(.+)", asked.stderr)
    return Path(told[1].strip()).resolve().parent if told else Path(nvcc).resolve().parent.parent


def _said(command: list[str]) -> str:
    """Output of a program; empty if it does not exist or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def _jobs() -> int:
    """Number of parallel compilers that CPUs and memory allow."""
    return max(1, min(len(os.sched_getaffinity(0)), _memory() // JOB_BYTES))


def _memory() -> int:
    """Bytes of memory for the compilers: free memory, or less if Slurm assigns only part of the node."""
    free = re.search(r"MemAvailable:\s+(\d+) kB", _read(Path("/proc/meminfo")))
    allowed = [int(free[1]) << 10] if free else []
    for kind, path in re.findall(r"^\d+:(memory|):(/.*)$", _read(OWN_GROUP), re.MULTILINE):
        top = CGROUPS / kind
        group = top / path.lstrip("/")
        for folder in [group, *group.parents][: len(group.parts) - len(top.parts) + 1]:
            limit = _read(folder / ("memory.limit_in_bytes" if kind else "memory.max")).strip()
            allowed += [int(limit)] if limit.isdecimal() else []
    return min(allowed, default=JOB_BYTES)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
