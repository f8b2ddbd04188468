"""Job backends: Slurm, this machine in the background, containers and clouds. Each executor has one.

backend = backend_of(profile)
backend.render(job, folder)      what would be submitted, as text: for --dry-run
backend.submit(job, folder)      its id
backend.state(record)            State("waiting", "waits for a node", None, "squeue")
"""

import importlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Protocol

from nemotron_cluster.job import Job, Record
from nemotron_cluster.profiles import Profile

Condition = Literal["waiting", "running", "done", "failed", "cancelled", "unknown"]
OVER = ("done", "failed", "cancelled")


@dataclass(frozen=True)
class State:
    """State of a job.

    Attributes:
        sentence: for people, such as "waits: no node is free"; also says what is unknown.
        exit_code: the step's own, if known.
        source: where the state comes from, such as "sacct" or "exit_code".
    """

    state: Condition
    sentence: str
    exit_code: int | None = None
    source: str = ""


class Backend(Protocol):
    """Runs jobs for one profile. `folder` is a job's local folder, complete except for what the backend adds."""

    def there(self, folder: Path) -> PurePosixPath:
        """Path of the job's folder on the nodes."""
        ...

    def render(self, job: Job, folder: Path) -> str:
        """What would be submitted, as text. Has no side effects, locally or remotely."""
        ...

    def test_submit(self, job: Job, folder: Path) -> str | None:
        """The scheduler's answer to a test submission, such as the estimated start; None if it gives none.

        Raises:
            UserError: the job would be refused.
        """
        ...

    def lay_out(self, job: Job, folder: Path) -> None:
        """Copy the job's folder to where it would run, without starting anything."""
        ...

    def submit(self, job: Job, folder: Path) -> str:
        """Submit the job, and return its id.

        Raises:
            UserError: the job was refused; nothing runs.
        """
        ...

    def state(self, record: Record) -> State:
        """State of a submitted job."""
        ...

    def log(self, record: Record, start: int = 0) -> bytes | None:
        """The job's log from byte `start` on; None before the first output."""
        ...

    def cancel(self, record: Record) -> None:
        """Make the job save and end, like Ctrl-C; does nothing if it has ended."""
        ...


BACKENDS = {"slurm": "slurm.backend:SlurmBackend", "local": "backends.local:LocalBackend"}
BACKENDS |= dict.fromkeys(("docker", "dgxcloud", "lepton", "kubeflow"), "backends.nemo_run:NemoRunBackend")
BACKENDS |= {"skypilot": "backends.skypilot:SkyPilotBackend"}


def backend_of(profile: Profile) -> Backend:
    """The backend for the jobs of a profile."""
    module, _, name = BACKENDS[profile.executor].partition(":")
    backend: Any = getattr(importlib.import_module(f"nemotron_cluster.{module}"), name)
    return backend(profile)
