"""Submit a script to Slurm, or only test the submission.

The caller's environment is not exported (`--export=NONE`), because Slurm would store it with all secrets in it.
"""

import re
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import PurePosixPath

from nemotron_cluster.slurm.reasons import refusal
from nemotron_cluster.transport import Answer, NoAnswer, Transport
from nemotron_shared.errors import UserError

SBATCH = "command -v sbatch >/dev/null || exit 127; exec sbatch --export=NONE"
NOT_FOUND = 127
"""A shell's exit code if a program was not found."""

UNREACHED = ("configuration source", "Unable to contact slurm controller", "Unable to establish", "slurm_load_ctl_conf")
"""Messages of Slurm's programs if they are installed but cannot find a cluster."""
PROGRAM = re.compile(r"^(?:sbatch|sinfo|scontrol): (?:error: )?")


class NoScheduler(UserError):
    """Slurm is not available."""


def require_answer(transport: Transport, answer: Answer) -> None:
    """Raise if a Slurm program could not reach a cluster: its error then says nothing about the job.

    Raises:
        NoScheduler: no cluster.
    """
    if any(words in answer.stderr for words in UNREACHED):
        raise NoScheduler(f"no Slurm answers {_where(transport)}: {_words(answer.stderr)}", "run this on a login node")


def test_only(transport: Transport, script: str) -> str:
    """Slurm's answer to a test submission of a script's text: when and where the job would start.

    Raises:
        NoScheduler: Slurm is not available.
        UserError: Slurm would refuse the job.
    """
    # sbatch reads the script from stdin, so that it need not exist on the cluster; it contains no secrets.
    answer = transport.run(["sh", "-c", f'printf %s "$1" | ({SBATCH} --test-only)', "sh", script])
    _require_taken(transport, answer)
    return _words(answer.stderr or answer.stdout)


def submit(transport: Transport, script: PurePosixPath) -> str:
    """Submit a script; returns the job's id.

    Raises:
        NoScheduler: Slurm is not available.
        UserError: Slurm refused it.
        NoAnswer: unknown whether the job was accepted.
    """
    try:
        with _deaf_to_ctrl_c():
            answer = transport.run(["sh", "-c", f'{SBATCH} --parsable "$1"', "sh", str(script)])
    except NoAnswer:
        if found := _id_of(transport, script):
            return found
        raise
    _require_taken(transport, answer)
    said = answer.stdout.strip().splitlines() or [""]
    number = said[-1].split(";")[0]  # "12;cluster" on sites with several clusters
    if not number.isdecimal():
        raise NoAnswer(f"sbatch took the job and said no number: {said[-1]!r}", "look for it: squeue --me")
    return number


@contextmanager
def _deaf_to_ctrl_c() -> Generator[None]:
    """Block Ctrl-C, which the terminal sends to all programs: it could kill sbatch after the job starts but before it
    prints the id.

    Child processes inherit the blocked signals.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _id_of(transport: Transport, script: PurePosixPath) -> str | None:
    """The queued job that runs a script, if any."""
    answer = transport.run(["squeue", "--me", "--noheader", "--format=%i %o"])
    for line in answer.stdout.splitlines():
        number, _, command = line.strip().partition(" ")
        if command == str(script):
            return number
    return None


def _words(text: str) -> str:
    """The last line of output from a Slurm program, without the program's name."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return PROGRAM.sub("", lines[-1]) if lines else "no message"


def _where(transport: Transport) -> str:
    return "here" if transport.place == "here" else f"on {transport.place}"


def _require_taken(transport: Transport, answer: Answer) -> None:
    if answer.returncode == NOT_FOUND:
        raise NoScheduler(f"there is no sbatch {_where(transport)}", "run this on a login node, or set tunnel and host")
    require_answer(transport, answer)
    if answer.returncode:
        words = _words(answer.stderr).removeprefix("Batch job submission failed: ").removeprefix("allocation failure: ")
        raise UserError(f"Slurm refuses the job {_where(transport)}: {words}", refusal(answer.stderr))
