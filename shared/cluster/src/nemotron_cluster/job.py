"""One job: what is to run, in words that no backend has a say in. A backend turns it into its own script or request."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Start = Literal["torchrun", "srun", "single", "ray"]
"""How processes begin: torchrun on each node, a task of Slurm for each, one alone, or one driver over a Ray cluster."""
FOLDER = "FOLDER"
"""In a job's words: its folder, wherever that comes to lie."""
CONFIG = f"{FOLDER}/config.yaml"


@dataclass(frozen=True)
class Job:
    """What is to run.

    Attributes:
        name: for queues and lists, such as "super3-sft".
        python: the interpreter, as the nodes see it.
        workdir: the working folder there, such as FOLDER/files; without it, the job's own.
        command: arguments of python, such as ("-m", "stages.sft.train", "-c", CONFIG).
        cpus_per_node: that the step uses where it does not have its nodes for itself.
        whole_nodes: whether it uses everything that its nodes have.
        environment: variables that everybody may read.
        secrets: names of variables whose values go through a file of their own.
        after: ids of jobs that must have ended well.
        mounts: absolute paths that the settings name, which a container has to see.
        force: `--force`, which counts at the first start only: a job that is queued again continues.
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
    """Mounts, FROM:TO, for the paths that lie in none of those that are there already."""
    seen = [mount.split(":") for mount in mounts]
    same = [Path(parts[0]) for parts in seen if parts[0] == parts[min(1, len(parts) - 1)]]
    return [f"{path}:{path}" for path in paths if not any(map(Path(path).is_relative_to, same))]


def in_folder(word: str, folder: str) -> str:
    """A word of a job with the job's folder in it."""
    return f"{folder}/{word.removeprefix(f'{FOLDER}/')}" if word.startswith(f"{FOLDER}/") else word
