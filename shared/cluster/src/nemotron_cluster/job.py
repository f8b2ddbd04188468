"""One job: what is to run, in words that no backend has a say in. A backend turns it into its own script or request."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Start = Literal["torchrun", "srun", "single", "ray"]
"""How processes begin: torchrun on each node, a task of Slurm for each, one alone, or one driver over a Ray cluster."""
CONFIG = "CONFIG"
"""In a job's command: the path of its config file, wherever the job's folder comes to lie."""


@dataclass(frozen=True)
class Job:
    """What is to run.

    Attributes:
        name: for queues and lists, such as "super3-sft".
        python: the interpreter, as the nodes see it.
        workdir: the working folder there; without it, the job's own.
        command: arguments of python, such as ("-m", "stages.sft.train", "-c", CONFIG).
        environment: variables that everybody may read.
        secrets: names of variables whose values go through a file of their own.
        after: ids of jobs that must have ended well.
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
    container: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    force: bool = False
