"""The folder of one job: what it was given, what it said, and how it ended.

.nemotron/jobs/20261123-101500-super3-sft/
    job.json      what it is and where it was submitted
        config.yaml   the resolved settings, for people
        own/          your own config files
        files/        of your working folder, where the nodes do not see that
    code/         the packages that it runs
    job.sh        the script
    secrets/env   for its owner only; gone when the job has ended
    log.txt       what it said
    exit_code     how it ended
"""

import os
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from nemotron_shared import atomic
from nemotron_shared.artifacts import Store
from nemotron_shared.errors import UserError

RECORD = "job.json"
LOG = "log.txt"
EXIT_CODE = "exit_code"
SCRIPT = "job.sh"
CONFIG_FILE = "config.yaml"
OWN = "own"
FILES = "files"
CODE = "code"


@dataclass(frozen=True)
class Record:
    """What is known of a job that was submitted.

    Attributes:
        id: the backend's own; None as long as it is not submitted, and for a job that was only staged.
        folder: of this machine, where this record lies.
        there: the job's folder as the nodes see it.
        host: the machine that the command ran on.
        line: the command line, for people.
    """

    name: str
    profile: str
    executor: str
    folder: str
    there: str
    host: str
    submitted: str
    line: str
    id: str | None = None
    after: tuple[str, ...] = ()
    commit: str | None = None
    more: dict[str, Any] = field(default_factory=dict)

    def write(self) -> None:
        """Keep it in the job's folder."""
        atomic.write_json(Path(self.folder) / RECORD, asdict(self))


def jobs_folder(home: str | None = None) -> Path:
    """Where jobs are kept: beside the artifacts that commands here read."""
    return Store.open(home).home / "jobs"


def new_folder(name: str, within: Path) -> Path:
    """A folder of its own for a job, which only its owner can enter."""
    within.mkdir(parents=True, exist_ok=True)
    while True:
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        folder = within / f"{stamp}-{name}-{secrets.token_hex(2)}"
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return folder


def records(within: Path) -> Iterator[Record]:
    """Every job's record, the oldest first; a folder whose record is damaged is left out."""
    if not within.is_dir():
        return
    found = (read_record(Path(entry.path) / RECORD) for entry in os.scandir(within) if entry.is_dir())
    yield from sorted((one for one in found if one is not None), key=lambda one: one.submitted)


def read_record(path: Path) -> Record | None:
    """One record; None where it is not one."""
    try:
        values = atomic.read_json(path)
        return Record(**values | {"after": tuple(values.get("after", ())), "folder": str(path.parent)})
    except (UserError, TypeError, AttributeError, OSError):
        return None
