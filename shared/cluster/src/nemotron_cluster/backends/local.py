"""Run jobs on this machine in the background, in a separate session that outlives the terminal.

The id consists of process id and start time, as 48213-99123, so that a later process that reuses the process id is
not mistaken for the job.
"""

import os
import platform
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nemotron_cluster.backends import State
from nemotron_cluster.backends.start import refuse_what_needs_slurm, start_script, state_of
from nemotron_cluster.folder import EXIT_CODE, LOG, SCRIPT, Record
from nemotron_cluster.job import Job
from nemotron_cluster.profiles.schema import Profile
from nemotron_shared import atomic
from nemotron_shared.errors import UserError

PROC = Path("/proc")


@dataclass(frozen=True)
class LocalBackend:
    """Background processes on this machine."""

    profile: Profile

    def there(self, folder: Path) -> PurePosixPath:
        """See the protocol."""
        return PurePosixPath(folder)

    def render(self, job: Job, folder: Path) -> str:
        """See the protocol."""
        refuse_what_needs_slurm(job, "local", one_node=True)
        return start_script(job, self.profile)

    def judge(self, job: Job, folder: Path) -> str | None:
        """See the protocol. This machine has no scheduler to ask."""
        return None

    def lay_out(self, job: Job, folder: Path) -> None:
        """See the protocol."""
        atomic.write_text(folder / SCRIPT, self.render(job, folder))

    def submit(self, job: Job, folder: Path) -> str:
        """See the protocol."""
        self.lay_out(job, folder)
        with (folder / LOG).open("ab") as log:
            process = subprocess.Popen(
                ["bash", str(folder / SCRIPT)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # Not waited for: this process may end before the job does, and the job's state is read from its folder.
        return f"{process.pid}-{started(process.pid) or 0}"

    def state(self, record: Record) -> State:
        """See the protocol."""
        runs = record.host == platform.node() and _runs(record)
        # Check after the process: if it is gone and has not written a code by now, it never will.
        if (code := _exit_code(Path(record.folder))) is not None:
            return state_of(code, EXIT_CODE)
        if runs:
            return State("running", "runs", None, "its process")
        if record.host != platform.node():
            return State("unknown", f"was started on {record.host}: ask there", None, "job.json")
        return State("failed", "ended without a word: it was killed, or the machine was", None, "its process")

    def log(self, record: Record, start: int = 0) -> bytes | None:
        """See the protocol."""
        try:
            with (Path(record.folder) / LOG).open("rb") as file:
                file.seek(start)
                return file.read()
        except FileNotFoundError:
            return None

    def cancel(self, record: Record) -> None:
        """See the protocol."""
        if record.host != platform.node():
            raise UserError(f"job {record.id} runs on {record.host}", f"cancel it there: ssh {record.host}")
        if _exit_code(Path(record.folder)) is None and _runs(record):
            # The script forwards the signal. Sent to the whole group, it would reach the step twice, the second time
            # possibly while Python is shutting down and has no handler.
            with suppress(ProcessLookupError):
                os.kill(int((record.id or "").partition("-")[0]), signal.SIGTERM)


def started(pid: int) -> int | None:
    """Start time of a process, which distinguishes it from later ones with the same id; None if it does not run."""
    if PROC.joinpath("self").exists():
        with suppress(OSError, IndexError):
            # Skip the name, which can contain anything: state is the first field after it, the start time the 20th.
            fields = PROC.joinpath(str(pid), "stat").read_text(errors="replace").rpartition(")")[2].split()
            return None if fields[0] in "ZX" else int(fields[19])
        return None
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    environment = os.environ | {"LC_ALL": "C"}
    answer = subprocess.run(command, capture_output=True, text=True, check=False, env=environment).stdout.split()
    if len(answer) < 6 or answer[0].startswith("Z"):
        return None
    return int(time.mktime(time.strptime(" ".join(answer[1:6]))))


def _runs(record: Record) -> bool:
    pid, _, start = (record.id or "").partition("-")
    return bool(pid) and started(int(pid)) == int(start or 0)


def _exit_code(folder: Path) -> int | None:
    with suppress(OSError, ValueError):
        return int((folder / EXIT_CODE).read_text(encoding="ascii"))
    return None
