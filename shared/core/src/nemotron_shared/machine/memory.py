"""How much memory this process may use: the machine's, or less in a container and in a job.

docker run --memory 8g ...       /sys/fs/cgroup/memory.max has 8589934592
srun --mem=40G ...               /sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/memory.max has 42949672960
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

GROUPS, OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def usable_memory() -> int:
    """Bytes: the machine's memory, or the lowest limit of the control groups of this process."""
    return min([physical_memory(), *group_limits()])


def physical_memory() -> int:
    """Bytes of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def group_limits() -> Iterator[int]:
    """Limits in bytes of this process's control groups of version 1 or 2, each with the groups that it is in."""
    for kind, path in re.findall(r"^\d+:(memory|):(/.*)$", _read(OWN_GROUP), re.MULTILINE):
        top = GROUPS / kind
        group = top / path.lstrip("/")
        for folder in [group, *group.parents][: len(group.parts) - len(top.parts) + 1]:
            limit = _read(folder / ("memory.limit_in_bytes" if kind else "memory.max")).strip()
            if limit.isdecimal():
                yield int(limit)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
