"""What takes a job: Slurm, this machine in the background, a container, a cloud. Each executor has one.

backend = backend_of(profile)
backend.render(job, folder)      what would be submitted, as text: for --dry-run
backend.submit(job, folder)      its id
backend.state(record)            State("waiting", "waits for a node", None, "squeue")
"""

import importlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Protocol

from nemotron_cluster.folder import Record
from nemotron_cluster.job import Job
from nemotron_cluster.profiles.schema import Profile

Condition = Literal["waiting", "running", "done", "failed", "cancelled", "unknown"]
OVER = ("done", "failed", "cancelled")


@dataclass(frozen=True)
class State:
    """How a job is.

    Attributes:
        sentence: for people, such as "waits: no node is free"; what is not known is said here, too.
        exit_code: the step's own, where it is known.
        source: what said so, such as "sacct" or "exit_code".
    """

    state: Condition
    sentence: str
    exit_code: int | None = None
    source: str = ""


class Backend(Protocol):
    """One profile's way to have jobs run. `folder` is a job's folder here, complete but for what the backend adds."""

    def there(self, folder: Path) -> PurePosixPath:
        """The job's folder as the nodes see it."""
        ...

    def render(self, job: Job, folder: Path) -> str:
        """What would be submitted, as text. Touches nothing, here or there."""
        ...

    def judge(self, job: Job, folder: Path) -> str | None:
        """What the place itself says of a job that is not handed over, such as when it would start; None where it says
        nothing.

        Raises:
            UserError: it would refuse it.
        """
        ...

    def lay_out(self, job: Job, folder: Path) -> None:
        """Bring the job's folder to where it would run, and start nothing."""
        ...

    def submit(self, job: Job, folder: Path) -> str:
        """Hand the job over, and say its id.

        Raises:
            UserError: it was refused; nothing runs.
        """
        ...

    def state(self, record: Record) -> State:
        """How a job is that was submitted."""
        ...

    def log(self, record: Record, start: int = 0) -> bytes | None:
        """What the job has said, from a byte on; None where it has said nothing yet."""
        ...

    def cancel(self, record: Record) -> None:
        """Have it saved and ended, as Ctrl-C would; nothing where it is over."""
        ...


PLACES = {
    "slurm": "nemotron_cluster.slurm.backend:SlurmBackend",
    "local": "nemotron_cluster.backends.local:LocalBackend",
    "docker": "nemotron_cluster.backends.nemo_run:NemoRunBackend",
    "dgxcloud": "nemotron_cluster.backends.nemo_run:NemoRunBackend",
    "lepton": "nemotron_cluster.backends.nemo_run:NemoRunBackend",
    "kubeflow": "nemotron_cluster.backends.nemo_run:NemoRunBackend",
    "skypilot": "nemotron_cluster.backends.skypilot:SkyPilotBackend",
}


def backend_of(profile: Profile) -> Backend:
    """What takes the jobs of a profile."""
    module, _, name = PLACES[profile.executor].partition(":")
    made: Any = getattr(importlib.import_module(module), name)
    return made(profile)
