"""Handing a script to Slurm, or only asking what it would say to it.

The environment of whoever submits stays behind (`--export=NONE`): Slurm would keep it, with all secrets in it.
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
"""A shell's exit code where there is no such program."""

UNREACHED = ("configuration source", "Unable to contact slurm controller", "Unable to establish", "slurm_load_ctl_conf")
"""What Slurm's programs say where they are installed, and there is no cluster."""
PROGRAM = re.compile(r"^(?:sbatch|sinfo|scontrol): (?:error: )?")


class NoScheduler(UserError):
    """There is no Slurm to ask."""


def require_answer(transport: Transport, answer: Answer) -> None:
    """Refuse what one of Slurm's programs says where it reaches no cluster: it is no judgement of a job.

    Raises:
        NoScheduler: it is that.
    """
    if any(words in answer.stderr for words in UNREACHED):
        raise NoScheduler(f"no Slurm answers {_where(transport)}: {_words(answer.stderr)}", "run this on a login node")


def test_only(transport: Transport, script: str) -> str:
    """What Slurm says to the text of a script that it does not take: when and where the job would start.

    Raises:
        NoScheduler: nobody could be asked.
        UserError: it would refuse it.
    """
    # sbatch reads a script from its standard input; the text holds no secrets, and need not lie there for this.
    answer = transport.run(["sh", "-c", f'printf %s "$1" | ({SBATCH} --test-only)', "sh", script])
    _require_taken(transport, answer)
    return _words(answer.stderr or answer.stdout)


def submit(transport: Transport, script: PurePosixPath) -> str:
    """Hand a script over; returns the job's id.

    Raises:
        NoScheduler: nobody could be asked.
        UserError: Slurm refused it.
        NoAnswer: whether it took the job is not known.
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
    number = said[-1].split(";")[0]  # "12;cluster" where there are several
    if not number.isdecimal():
        raise NoAnswer(f"sbatch took the job and said no number: {said[-1]!r}", "look for it: squeue --me")
    return number


@contextmanager
def _deaf_to_ctrl_c() -> Generator[None]:
    """Ctrl-C goes to every program of a terminal, and would end sbatch between the job's start and its id.

    A program that is started inherits what is blocked.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _id_of(transport: Transport, script: PurePosixPath) -> str | None:
    """The job that runs a script, where Slurm has it in its queue."""
    answer = transport.run(["squeue", "--me", "--noheader", "--format=%i %o"])
    for line in answer.stdout.splitlines():
        number, _, command = line.strip().partition(" ")
        if command == str(script):
            return number
    return None


def _words(text: str) -> str:
    """The last thing that a program of Slurm said, without its name."""
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
