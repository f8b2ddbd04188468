"""What a machine has, asked without importing torch: for the checks that an engine makes before any work."""

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from nemotron_shared.runtime import distributed

DRIVER = Path("/proc/driver/nvidia/version")
MIB = 2**20


@dataclass(frozen=True)
class GPU:
    """One GPU and its memory in bytes."""

    name: str
    memory: int


@dataclass(frozen=True)
class Machine:
    """Attributes: `python` its version, (3, 12); `processes` those of this run; `memory`, `free_disk` in bytes."""

    python: tuple[int, int]
    processes: int
    gpus: tuple[GPU, ...]
    memory: int
    free_disk: int

    @classmethod
    def here(cls, folder: Path, processes: int = 1) -> "Machine":
        """This machine, and the disk that holds `folder`."""
        existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        major, minor, _ = platform.python_version_tuple()
        return cls(
            python=(int(major), int(minor)),
            processes=max(processes, distributed.world_size()),
            gpus=_gpus(),
            memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            free_disk=shutil.disk_usage(existing).free,
        )


def _gpus() -> tuple[GPU, ...]:
    """As nvidia-smi lists them, those alone that CUDA_VISIBLE_DEVICES leaves; none where there is no driver."""
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
