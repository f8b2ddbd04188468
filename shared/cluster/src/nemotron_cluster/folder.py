"""The folder of one job: its inputs, log and exit code.

.nemotron/jobs/20261123-101500-super3-sft/
    job.json      what it is and where it was submitted
    config.yaml   the resolved settings, for people
    own/          your own config files
    files/        of your working folder, if the nodes cannot see it
    code/         the packages that it runs
    job.sh        the script
    secrets/env   readable only by its owner; removed when the job has ended
    log.txt       its output
    exit_code     its exit code
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
    """Record of a submitted job.

    Attributes:
        id: assigned by the backend; None until it is submitted, and for a job that was only staged.
        folder: on this machine; contains this record.
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
        """Write it into the job's folder."""
        atomic.write_json(Path(self.folder) / RECORD, asdict(self))


def jobs_folder(home: str | None = None) -> Path:
    """The folder of all jobs, next to the artifact store of local commands."""
    return Store.open(home).home / "jobs"


def new_folder(name: str, within: Path) -> Path:
    """Create a unique folder for a job, accessible only to its owner."""
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
    """Records of all jobs, oldest first; damaged ones are skipped."""
    if not within.is_dir():
        return
    found = (read_record(Path(entry.path) / RECORD) for entry in os.scandir(within) if entry.is_dir())
    yield from sorted((one for one in found if one is not None), key=lambda one: one.submitted)


def read_record(path: Path) -> Record | None:
    """Read a record; None if it is not valid."""
    try:
        values = atomic.read_json(path)
        return Record(**values | {"after": tuple(values.get("after", ())), "folder": str(path.parent)})
    except (UserError, TypeError, AttributeError, OSError):
        return None
