"""The start script of a job, and jobs on this machine in the background.

The script starts a job on one machine, in a container or on each cloud node. It locates its folder relative to itself,
because a container mounts the folder elsewhere. Secrets come from `secrets/env` next to it and are never part of its
text.

On this machine it runs in a separate session that outlives the terminal. The job's id consists of process id and start
time, as 48213-99123, so that a later process that reuses the process id is not mistaken for the job.
"""

import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nemotron_cluster.backends import State
from nemotron_cluster.job import CONFIG_FILE, EXIT_CODE, FILES, FOLDER, LOG, OWN, SCRIPT, Job, Record
from nemotron_cluster.profiles import Profile
from nemotron_cluster.transport import Here
from nemotron_shared.system import atomic
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.stop import STOPPED_EXIT_CODE

PACKED = "code.txz"
"""The packages as one archive, for services that charge per file."""
TORCHRUN = ("-m", "nemotron_shared.engine.torchrun")
SAVING_SECONDS = 300
ONE_MACHINE = ("--standalone",)

TEMPLATE = """\
#!/usr/bin/env bash
# {name}
here=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
{variables}
# The packages of this job come before those that lie in the working folder.
code=$here/code
export PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${{TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-{saving}}} # seconds in which torchrun's save

leave() {{
    code=$?
    rm -rf "$here/secrets"
    printf '%s\\n' "$code" >"$here/.exit_code" && mv -f "$here/.exit_code" "$here/exit_code"
}}
trap leave EXIT
trap 'exit {stopped}' TERM INT USR1 # nothing has begun that could be saved
set -e
if [ -r "$here/secrets/env" ]; then
    {{ set +x; }} 2>/dev/null
    . "$here/secrets/env"
fi
{setup}
cd {folder}
if [ -f "$here/{packed}" ]; then
    code=$(mktemp -d)
    {python} -m tarfile -e "$here/{packed}" "$code"
fi
export PYTHONPATH="$code${{PYTHONPATH:+:$PYTHONPATH}}"
set +e

{command} &
child=$!
printf '%s\\n' "$$" >"$here/pid"
# Whoever ends the job asks the step to save; it answers with {stopped}.
trap 'asked=1; kill -TERM "$child" 2>/dev/null' TERM INT USR1
asked=1
while [ "$asked" ]; do
    asked=
    wait "$child"
    code=$?
done
exit "$code"
"""
PLAIN = re.compile(r"[\w./-]+")
ONCE = """\
again=$here/started.${NODE_RANK:-${PET_NODE_RANK:-0}}
[ -e "$again" ] || force=--force
: >"$again\""""
"""Apply --force only on the first start, so that the job continues if the service restarts it."""


def start_script(job: Job, profile: Profile, nodes: Sequence[str] = ONE_MACHINE) -> str:
    """The text of the script.

    Args:
        nodes: torchrun's options for the node rank, quoted for a shell.
    """
    words = [shlex.quote(job.python)]
    if job.start == "torchrun":
        words += [*TORCHRUN, *nodes, f"--nproc-per-node={job.processes_per_node}"]
    words += map(_word, job.command)
    return TEMPLATE.format(
        name=job.name,
        variables="".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(job.environment.items())),
        setup="\n".join([*profile.setup_lines, *([ONCE] if job.force else [])]),
        folder=_word(job.workdir) if job.workdir else '"$here"',
        packed=PACKED,
        python=words[0],
        command=" ".join(words + (["$force"] if job.force else [])),
        stopped=STOPPED_EXIT_CODE,
        saving=SAVING_SECONDS,
    )


def copy_own_files(folder: Path, place: Path) -> None:
    """Copy a user's own settings and files from a job's folder."""
    shutil.copy(folder / CONFIG_FILE, place)
    for name in (OWN, FILES):
        if (folder / name).is_dir():
            shutil.copytree(folder / name, place / name)


def _word(word: str) -> str:
    """Quote for the shell, replacing the job's folder by the script's variable."""
    inside = word.removeprefix(f"{FOLDER}/")
    if inside == word:
        return shlex.quote(word)
    return f'"$here/{inside}"' if PLAIN.fullmatch(inside) else f'"$here"/{shlex.quote(inside)}'


def refuse_unsupported(job: Job, executor: str, one_node: bool = False) -> None:
    """Refuse what this executor cannot do.

    Raises:
        UserError: the job requires it.
    """
    if job.after:
        wait = "submit it when they are done, or use a profile of Slurm"
        raise UserError(f"executor '{executor}' cannot hold a job back until others are done", wait)
    if one_node and job.nodes > 1:
        raise UserError(f"executor '{executor}' has one node, and the job asks for {job.nodes}", "set nodes = 1")
    if job.start == "srun" or (job.start == "ray" and job.nodes > 1):
        what = "starts its processes with srun" if job.start == "srun" else "wants Ray on several nodes"
        raise UserError(f"executor '{executor}' cannot take a job that {what}", "use a profile of Slurm")


def state_of(code: int, source: str) -> State:
    """The state for an exit code."""
    if code == 0:
        return State("done", "done", code, source)
    if code == STOPPED_EXIT_CODE:
        return State("cancelled", "was stopped, and saved what it had", code, source)
    killed = f": ended by signal {code - 128}" if 128 < code < 160 else ""
    return State("failed", f"failed with exit code {code}{killed}", code, source)


@dataclass(frozen=True)
class LocalBackend:
    """Background processes on this machine."""

    profile: Profile

    def there(self, folder: Path) -> PurePosixPath:
        return PurePosixPath(folder)

    def render(self, job: Job, folder: Path) -> str:
        refuse_unsupported(job, "local", one_node=True)
        return start_script(job, self.profile)

    def test_submit(self, job: Job, folder: Path) -> str | None:
        """See the protocol. This machine has no scheduler to ask."""
        return None

    def lay_out(self, job: Job, folder: Path) -> None:
        atomic.write_text(folder / SCRIPT, self.render(job, folder))

    def submit(self, job: Job, folder: Path) -> str:
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
        runs = record.host == platform.node() and _runs(record)
        # Check after the process: if it is gone and has not written a code by now, it never will.
        if (code := exit_code_in(Path(record.folder))) is not None:
            return state_of(code, EXIT_CODE)
        if runs:
            return State("running", "runs", None, "its process")
        if record.host != platform.node():
            return State("unknown", f"was started on {record.host}: ask there", None, "job.json")
        return State("failed", "ended without a word: it was killed, or the machine was", None, "its process")

    def log(self, record: Record, start: int = 0) -> bytes | None:
        return Here().read(PurePosixPath(record.folder) / LOG, start)

    def cancel(self, record: Record) -> None:
        if record.host != platform.node():
            raise UserError(f"job {record.id} runs on {record.host}", f"cancel it there: ssh {record.host}")
        if exit_code_in(Path(record.folder)) is None and _runs(record):
            # The script forwards the signal. Sent to the whole group, it would reach the step twice, the second time
            # possibly while Python is shutting down and has no handler.
            with suppress(ProcessLookupError):
                os.kill(int((record.id or "").partition("-")[0]), signal.SIGTERM)


def started(pid: int) -> int | None:
    """Start time of a process, which distinguishes it from later ones with the same id; None if it does not run."""
    if Path("/proc/self").exists():
        with suppress(OSError, IndexError):
            # Skip the name, which can contain anything: state is the first field after it, the start time the 20th.
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
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


def exit_code_in(folder: Path) -> int | None:
    """The exit code that a job's script recorded, if any."""
    with suppress(OSError, ValueError):
        return int((folder / EXIT_CODE).read_text(encoding="ascii"))
    return None
