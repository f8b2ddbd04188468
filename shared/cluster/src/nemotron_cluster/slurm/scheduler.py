"""State of a Slurm job: from squeue, then sacct, then scontrol, then the exit code that the job itself wrote.

    facts = ask(transport.run, "1234")
    facts.state, facts.reason, facts.source      "PENDING", "Priority", "squeue"

No site has all of them: sacct needs accounting, and squeue forgets a job minutes after its end. If a scheduler does
not answer, the state is unknown; in particular, the job may still be running.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from subprocess import CompletedProcess
from typing import Literal

from nemotron_cluster.backends import Condition
from nemotron_cluster.transport import NoAnswer
from nemotron_shared.errors import UserError

Run = Callable[[list[str]], CompletedProcess[str]]
"""Runs a command where the scheduler is, such as `Transport.run`."""
Source = Literal["squeue", "sacct", "scontrol", "exit_code"]

QUEUE = ("JobID", "State", "exit_code", "RestartCnt", "StartTime", "NodeList", "Reason")
ACCOUNTS = ("JobIDRaw", "State", "ExitCode", "Start", "NodeList", "Reason")
CONTROLLER = ("JobState", "ExitCode", "Restarts", "StartTime", "NodeList", "Reason")
NOTHING = ("", "(null)", "None", "None assigned", "N/A", "Unknown")
"""Representations of missing values in the output of Slurm's programs."""
UNKNOWN_JOB = "Invalid job id specified"
NO_ACCOUNTING = "accounting storage is disabled"
NOT_FOUND = 127
"""A shell's exit code if a program was not found, which ssh passes on."""

CONDITIONS: dict[Condition, tuple[str, ...]] = {
    "waiting": ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"),
    "running": ("RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"),
    "done": ("COMPLETED",),
    "cancelled": ("CANCELLED", "REVOKED"),
    "failed": (
        *("BOOT_FAIL", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
        *("RECONFIG_FAIL", "TIMEOUT"),
    ),
}


@dataclass(frozen=True)
class Facts:
    """One job, according to one source.

    Attributes:
        state: Slurm's own word, such as RUNNING or NODE_FAIL.
        reason: why it waits, or how it failed; may be empty.
        exit_code: of the batch script; None until the job has ended.
        signal: the signal that killed the script, if any.
        nodes: such as "n[1-4]"; empty until nodes are allocated.
        restarts: how often it was requeued; None if the source does not know.
        start: the actual or estimated start time.
    """

    id: str
    state: str
    source: Source
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    nodes: str = ""
    restarts: int | None = None
    start: str | None = None

    @property
    def condition(self) -> Condition:
        """The state as a condition shared by all executors. Unknown states do not count as an end."""
        return next((condition for condition, states in CONDITIONS.items() if self.state in states), "unknown")

    @property
    def over(self) -> bool:
        """Whether the job has ended and will not be requeued automatically."""
        return self.condition in ("done", "cancelled", "failed")


def ask(run: Run, job: str, exit_code: Callable[[], str | None] = lambda: None) -> Facts | None:
    """The first answer about a job.

    Args:
        run: runs scheduler commands; may raise NoAnswer.
        exit_code: reads the file that the job's script writes at its end.

    Returns:
        None if all sources answered and none knows the job.

    Raises:
        NoAnswer: no source knows the job, and at least one did not answer.
    """
    silent = ""
    for source in (_squeue, _sacct, _scontrol):
        try:
            if found := source(run, job):
                return found
        except NoAnswer as error:
            silent = silent or error.message
    code = (exit_code() or "").strip()
    if code.isdecimal():
        return Facts(job, "FAILED" if int(code) else "COMPLETED", "exit_code", exit_code=int(code))
    if silent:
        raise NoAnswer(
            f"the state of job {job} is not known: {silent}", "the job is not affected by this; ask again in a minute"
        )
    return None


def _squeue(run: Run, job: str) -> Facts | None:
    columns = ",".join(f"{name}:|" for name in QUEUE)
    # `--states=all` also shows jobs that have just ended, with their state
    said = _said(run, ["squeue", "--noheader", "--states=all", f"--jobs={job}", f"--Format={columns}"])
    row = _row(said, len(QUEUE), job)
    return _facts("squeue", job, *row) if row else None


def _sacct(run: Run, job: str) -> Facts | None:
    command = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", f"--format={','.join(ACCOUNTS)}"]
    row = _row(_said(run, command), len(ACCOUNTS), job)
    if row is None:
        return None
    state, code, *others = row
    return _facts("sacct", job, state, code, "", *others)  # sacct does not count restarts


def _scontrol(run: Run, job: str) -> Facts | None:
    said = _said(run, ["scontrol", "--oneliner", "show", "job", job])
    found = [re.search(rf"(?:^|\s){name}=(\S*)", said) for name in CONTROLLER]
    state, code, restarts, start, nodes, reason = [match[1] if match else "" for match in found]
    # scontrol writes reasons with underscores, so that values contain no spaces
    return _facts("scontrol", job, state, code, restarts, start, nodes, reason.replace("_", " ")) if state else None


def _said(run: Run, command: list[str]) -> str:
    """Output of a command; empty for an unknown job, or without accounting.

    Raises:
        NoAnswer: it failed in any other way, or timed out.
    """
    program = command[0]
    try:
        answer = run(command)
    except NoAnswer:
        raise
    except UserError as error:  # not installed, or the login node cannot be reached
        if program == "sacct":
            return ""
        raise NoAnswer(error.message, error.remedy) from error
    problem = answer.stderr.strip()
    if program == "sacct" and (answer.returncode == NOT_FOUND or NO_ACCOUNTING in problem):
        return ""
    if answer.returncode and UNKNOWN_JOB not in problem:
        last = problem.splitlines()[-1] if problem else f"exit code {answer.returncode}"
        raise NoAnswer(f"{program}: {last.removeprefix(f'{program}: ')}")
    return answer.stdout


def _row(said: str, columns: int, job: str) -> list[str] | None:
    """The cells of this job's line after its id. Other lines, such as warnings, are skipped."""
    for line in said.splitlines():
        # the reason comes last, because it may contain any text
        cells = [cell.strip() for cell in line.split("|", columns - 1)]
        if len(cells) == columns and cells[0] == job:
            return cells[1:]
    return None


def _facts(
    source: Source, job: str, state: str, code: str, restarts: str, start: str, nodes: str, reason: str
) -> Facts:
    reason = reason.removesuffix("|").strip()  # squeue's line ends with a separator
    facts = Facts(
        id=job,
        state=state.split()[0].rstrip("+") if state.split() else "UNKNOWN",  # "CANCELLED by 1000"
        source=source,
        reason="" if reason in NOTHING else reason,
        nodes="" if nodes in NOTHING else nodes,
        restarts=int(restarts) if restarts.isdecimal() else None,
        start=None if start in NOTHING else start,
    )
    if not facts.over:
        return facts  # a requeued job still shows the exit code of its last attempt
    ended, signal = _ended(code)
    return replace(facts, exit_code=ended, signal=signal)


def _ended(text: str) -> tuple[int | None, int | None]:
    """Exit code and signal from "3:0", or from a wait(2) status, which squeue showed until 23.02."""
    if match := re.fullmatch(r"(\d+):(\d+)", text):
        code, signal = int(match[1]), int(match[2])
    elif text.isdecimal():
        code, signal = int(text) >> 8, int(text) & 0x7F
    else:
        return None, None
    return code, signal or None
