"""A job, independent of any backend. Each backend turns it into its own script or request."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Start = Literal["torchrun", "srun", "single", "ray"]
"""How processes start: torchrun on each node, one Slurm task per process, a single process, or a driver on Ray."""
FOLDER = "FOLDER"
"""Placeholder in a job's arguments for the path of its folder."""
CONFIG = f"{FOLDER}/config.yaml"


@dataclass(frozen=True)
class Job:
    """A job to run.

    Attributes:
        name: for queues and lists, such as "super3-sft".
        python: the interpreter, as the nodes see it.
        workdir: the working folder there, such as FOLDER/files; without it, the job's own.
        command: arguments of python, such as ("-m", "stages.sft.train", "-c", CONFIG).
        cpus_per_node: CPUs that the step uses if it does not have whole nodes.
        whole_nodes: whether it uses all resources of its nodes.
        environment: variables without secrets.
        secrets: names of variables whose values are passed in a separate file.
        after: ids of jobs that must have succeeded.
        mounts: absolute paths that the settings name, which a container must mount.
        force: `--force`, which applies only to the first start: a requeued job continues.
    """

    name: str
    command: tuple[str, ...]
    python: str = "python3"
    workdir: str | None = None
    start: Start = "single"
    nodes: int = 1
    processes_per_node: int = 1
    gpus_per_node: int = 0
    cpus_per_node: int | None = None
    whole_nodes: bool = False
    container: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    force: bool = False


def unseen(paths: Iterable[str], mounts: Iterable[str]) -> list[str]:
    """Mounts, FROM:TO, for paths that are not covered by the existing mounts."""
    ends = [mount.split(":")[:2] for mount in mounts]  # FROM, or FROM:TO; more are options
    same = [Path(source) for source, *target in ends if target in ([], [source])]
    return [f"{path}:{path}" for path in paths if not any(map(Path(path).is_relative_to, same))]


def in_folder(word: str, folder: str) -> str:
    """Replace the placeholder by the job's folder."""
    return f"{folder}/{word.removeprefix(f'{FOLDER}/')}" if word.startswith(f"{FOLDER}/") else word
