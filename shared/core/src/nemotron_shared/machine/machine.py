"""Describe a machine without importing torch, for the checks before any work.

    Machine.here(folder)                      this machine, and the disk that holds `folder`

`machine.description` reads another one's from a file. `DEVICES` has the data sheets of GPUs: dense operations, without
sparsity.
"""

import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from nemotron_shared.machine.memory import physical_memory, usable_memory
from nemotron_shared.system import distributed

DRIVER = Path("/proc/driver/nvidia/version")
STATM, CPUINFO = Path("/proc/self/statm"), Path("/proc/cpuinfo")
MIB = 2**20
GB = 10**9


@dataclass(frozen=True)
class GPU:
    """One GPU and its memory in bytes."""

    name: str
    memory: float


@dataclass(frozen=True)
class Machine:
    """The properties of a machine that checks use; None for anything a description leaves out.

    Attributes:
        python: its version, "3.12".
        processes: of this run, over all `nodes`.
        gpus: of one node.
        memory, free_disk: in bytes, infinite if unknown. Memory is what a container or a job may use of it.
        packages: versions by name.
        is_here: whether it is this machine, with the packages of this environment.
        sees_files: whether it has the same files as this machine.
        wandb: whether W&B has a key there, None if unknown.
        profile: its name in env.toml, by which jobs get there.
    """

    python: str | None
    processes: int
    gpus: tuple[GPU, ...]
    memory: float
    free_disk: float
    nodes: int = 1
    packages: Mapping[str, str] | None = None
    is_here: bool = True
    sees_files: bool = True
    wandb: bool | None = None
    profile: str | None = None

    @classmethod
    def here(cls, folder: Path, processes: int = 1) -> "Machine":
        """This machine, and the disk that holds `folder`."""
        existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        world = distributed.world_size()
        return cls(
            python=".".join(platform.python_version_tuple()[:2]),
            processes=max(processes, world),
            gpus=_gpus(),
            memory=usable_memory(),
            free_disk=shutil.disk_usage(existing).free,
            nodes=max(1, world // int(os.environ.get("LOCAL_WORLD_SIZE", world))),
        )

    @property
    def knows_packages(self) -> bool:
        """Whether there is a list of packages to check."""
        return self.is_here or self.packages is not None

    @property
    def processes_per_node(self) -> int:
        """Processes on each node, rounded up."""
        return -(-self.processes // self.nodes)

    def version_of(self, package: str) -> str | None:
        """Version of an installed package, without importing it; None if missing, "unknown" if not described."""
        if self.packages is not None:
            return self.packages.get(normal_name(package))
        if not self.is_here:
            return "unknown"
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None


def hardware() -> dict[str, str | int | float]:
    """This machine's processor, cores (of this process), memory and GPUs, for comparing times."""
    gpus = _gpus()
    found = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_gb": round(physical_memory() / GB, 1),
    }
    return found | ({"gpus": f"{len(gpus)} x {gpus[0].name}, {gpus[0].memory / GB:.0f} GB"} if gpus else {})


def memory_held() -> float:
    """GB held by this process: the peak on its GPU if it uses one, otherwise resident memory."""
    torch = sys.modules.get("torch")  # don't import it for this
    if torch is not None and torch.cuda.is_initialized():
        return torch.cuda.max_memory_reserved() / GB
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / GB
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # without /proc: the peak, in bytes
    return most / GB


def _processor() -> str:
    names = (line.partition(":")[2].strip() for line in _lines(CPUINFO) if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []


def normal_name(name: str) -> str:
    """A package's name as registries compare it."""
    return name.lower().replace("_", "-").replace(".", "-")


def _gpus() -> tuple[GPU, ...]:
    """GPUs listed by nvidia-smi and allowed by CUDA_VISIBLE_DEVICES; none without a driver."""
    if not DRIVER.exists() or shutil.which("nvidia-smi") is None:
        return ()
    command = ["nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits"]
    listed = subprocess.run(command, capture_output=True, text=True)
    if listed.returncode:
        return ()
    rows = [[field.strip() for field in line.split(",")] for line in listed.stdout.splitlines()]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = None if visible is None else {one.strip() for one in visible.split(",")}
    return tuple(
        GPU(name, int(memory) * MIB) for index, uuid, name, memory in rows if chosen is None or {index, uuid} & chosen
    )


GIB = 2**30


@dataclass(frozen=True)
class Device:
    """Specifications of one device.

    Attributes:
        operations: per second, in bfloat16.
        bandwidth: of its memory, in bytes per second.
        memory: in bytes.
    """

    name: str
    operations: float
    bandwidth: float
    memory: float


DEVICES = {
    name: Device(name, teraflops * 1e12, terabytes * 1e12, gibibytes * GIB)
    for name, teraflops, terabytes, gibibytes in [
        ("A100-40GB", 312, 1.555, 40),
        ("A100-80GB", 312, 2.0, 80),
        ("H100", 989, 3.35, 80),
        ("H200", 989, 4.8, 140),
        ("B200", 2250, 8.0, 179),
        ("GB200", 2500, 8.0, 185),
        ("B300", 2250, 8.0, 268),
        ("GB300", 2500, 8.0, 277),
        ("L40S", 362, 0.864, 48),
        ("RTX 4090", 165, 1.01, 24),
        ("RTX 5090", 210, 1.79, 32),
    ]
}
USUAL = {"A100": "A100-80GB"}
"""The variant meant by a name without a memory size."""
CORE = "CPU core"
CORE_OPERATIONS = 17e9
"""Per second, overall: measured with the tiny model on one core of an AMD EPYC (Zen 3) at 2.4 GHz."""


LONGEST_SIZE = 8


def device_named(name: str) -> Device | None:
    """The device named in "NVIDIA H100 80GB HBM3" or "rtx4090"; None for an unknown one or another memory size."""
    words = re.sub(r"[^A-Z0-9]+", " ", name.upper()).split()
    told = next((word for word in words if re.fullmatch(r"\d+GB", word)), None)
    kind = next((one for one in {key.partition("-")[0] for key in DEVICES} if _is_called(one, words)), None)
    if kind is None or len(told or "") > LONGEST_SIZE:
        return None
    found = DEVICES.get(f"{kind}-{told}") or DEVICES[USUAL.get(kind, kind)]
    # drivers and data sheets may mean GB or GiB
    return found if told is None or abs(int(told[:-2]) * GIB / found.memory - 1) < 0.1 else None


def _is_called(kind: str, words: list[str]) -> bool:
    return kind in words or (" " in kind and (f" {kind} " in f" {' '.join(words)} " or kind.replace(" ", "") in words))
