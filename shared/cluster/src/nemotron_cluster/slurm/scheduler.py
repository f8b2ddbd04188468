"""Slurm's own programs: submit a job, see its state, and explain why it waits or is refused.

    number = submit(transport, PurePosixPath("/lustre/me/jobs/1/job.sh"))
    facts = find_job(transport.run, number)
    facts.state, facts.reason, facts.source      "PENDING", "Priority", "squeue"
    explain_reason("QOSMaxGRESPerUser")          "you have as many GPUs as your QOS gives one user; ..."

The state comes from squeue, then sacct, then scontrol, then the exit code that the job itself wrote. No site has all of
them: sacct needs accounting, and squeue forgets a job minutes after its end. If a scheduler does not answer, the state
is unknown; in particular, the job may still be running.

The caller's environment is not exported (`--export=NONE`), because Slurm would store it with all secrets in it.
"""

import functools
import re
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Literal

import yaml

from nemotron_cluster.backends import OVER, Condition
from nemotron_cluster.transport import Answer, NoAnswer, Transport, last_line
from nemotron_shared.system.errors import UserError

SBATCH = "command -v sbatch >/dev/null || exit 127; exec sbatch --export=NONE"
NOT_FOUND = 127
"""A shell's exit code if a program was not found, which ssh passes on."""
UNREACHED = ("configuration source", "Unable to contact slurm controller", "Unable to establish", "slurm_load_ctl_conf")
"""Messages of Slurm's programs if they are installed but cannot find a cluster."""
PROGRAM = re.compile(r"^(?:sbatch|sinfo|scontrol): (?:error: )?")
Run = Callable[[list[str]], Answer]
"""Runs a command where the scheduler is, such as `Transport.run`."""
Source = Literal["squeue", "sacct", "scontrol", "exit_code"]
QUEUE = ("JobID", "State", "exit_code", "RestartCnt", "StartTime", "NodeList", "Reason")
ACCOUNTS = ("JobIDRaw", "State", "ExitCode", "Start", "NodeList", "Reason")
CONTROLLER = ("JobState", "ExitCode", "Restarts", "StartTime", "NodeList", "Reason")
NOTHING = ("", "(null)", "None", "None assigned", "N/A", "Unknown")
"""Representations of missing values in the output of Slurm's programs."""
UNKNOWN_JOB = "Invalid job id specified"
NO_ACCOUNTING = "accounting storage is disabled"
CONDITIONS: dict[Condition, tuple[str, ...]] = {
    "waiting": ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"),
    "running": ("RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"),
    "done": ("COMPLETED",),
    "cancelled": ("CANCELLED", "REVOKED"),
    "failed": (
        "BOOT_FAIL", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL",
        "TIMEOUT",
    ),
}  # fmt: skip
AGAIN = "requeued"
"""The entry for a job that waits because it was just requeued."""
SIZE = re.compile(r"^(\d+)\+?\|(\d+)\+?$", re.MULTILINE)
MEMORY = ("DefMemPerCPU", "DefMemPerNode", "DefMemPerGPU", "MaxMemPerCPU", "MaxMemPerNode")
CPUS = ("MaxCPUsPerNode",)
NO_LIMIT = ("UNLIMITED", "0", "NONE", "(null)", "N/A")


class NoScheduler(UserError):
    """Slurm is not available."""


def require_answer(transport: Transport, answer: Answer) -> None:
    """Raise if a Slurm program could not reach a cluster: its error then says nothing about the job.

    Raises:
        NoScheduler: no cluster.
    """
    if any(words in answer.stderr for words in UNREACHED):
        what = f"no Slurm answers {_where(transport)}: {_message(answer.stderr)}"
        raise NoScheduler(what, "run this on a login node")


def test_only(transport: Transport, script: str) -> str:
    """Slurm's answer to a test submission of a script's text: when and where the job would start.

    Raises:
        NoScheduler: Slurm is not available.
        UserError: Slurm would refuse the job.
    """
    # sbatch reads the script from stdin, so that it need not exist on the cluster; it contains no secrets.
    answer = transport.run(["sh", "-c", f'printf %s "$1" | ({SBATCH} --test-only)', "sh", script])
    _require_accepted(transport, answer)
    return _message(answer.stderr, answer.stdout)


def submit(transport: Transport, script: PurePosixPath) -> str:
    """Submit a script; returns the job's id.

    Raises:
        NoScheduler: Slurm is not available.
        UserError: Slurm refused it.
        NoAnswer: unknown whether the job was accepted.
    """
    try:
        with _ctrl_c_blocked():
            answer = transport.run(["sh", "-c", f'{SBATCH} --parsable "$1"', "sh", str(script)])
    except NoAnswer:
        if found := _find_id(transport, script):
            return found
        raise
    _require_accepted(transport, answer)
    line = last_line(answer.stdout)
    number = line.split(";")[0]  # "12;cluster" on sites with several clusters
    if not number.isdecimal():
        raise NoAnswer(f"sbatch accepted the job, but printed no number: {line!r}", "look for it: squeue --me")
    return number


@contextmanager
def _ctrl_c_blocked() -> Generator[None]:
    """Block Ctrl-C, which the terminal sends to all programs: it could kill sbatch after the job starts but before it
    prints the id.

    Child processes inherit the blocked signals.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _find_id(transport: Transport, script: PurePosixPath) -> str | None:
    """The queued job that runs a script, if any."""
    answer = transport.run(["squeue", "--me", "--noheader", "--format=%i %o"])
    for line in answer.stdout.splitlines():
        number, _, command = line.strip().partition(" ")
        if command == str(script):
            return number
    return None


def _message(*texts: str) -> str:
    """The last line of output from a Slurm program, without the program's name."""
    return PROGRAM.sub("", last_line(*texts))


def _where(transport: Transport) -> str:
    return "here" if transport.place == "here" else f"on {transport.place}"


def _require_accepted(transport: Transport, answer: Answer) -> None:
    if answer.returncode == NOT_FOUND:
        raise NoScheduler(f"sbatch not found {_where(transport)}", "run this on a login node, or set tunnel and host")
    require_answer(transport, answer)
    if answer.returncode:
        why = _message(answer.stderr).removeprefix("Batch job submission failed: ").removeprefix("allocation failure: ")
        raise UserError(f"Slurm refuses the job {_where(transport)}: {why}", explain_refusal(answer.stderr))


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
        return self.condition in OVER


def find_job(run: Run, job: str, exit_code: Callable[[], str | None] = lambda: None) -> Facts | None:
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
    output = _output(run, ["squeue", "--noheader", "--states=all", f"--jobs={job}", f"--Format={columns}"])
    row = _row(output, len(QUEUE), job)
    return _facts("squeue", job, *row) if row else None


def _sacct(run: Run, job: str) -> Facts | None:
    command = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", f"--format={','.join(ACCOUNTS)}"]
    row = _row(_output(run, command), len(ACCOUNTS), job)
    if row is None:
        return None
    state, code, *others = row
    return _facts("sacct", job, state, code, "", *others)  # sacct does not count restarts


def _scontrol(run: Run, job: str) -> Facts | None:
    output = _output(run, ["scontrol", "--oneliner", "show", "job", job])
    found = [re.search(rf"(?:^|\s){name}=(\S*)", output) for name in CONTROLLER]
    state, code, restarts, start, nodes, reason = [match[1] if match else "" for match in found]
    # scontrol writes reasons with underscores, so that values contain no spaces
    return _facts("scontrol", job, state, code, restarts, start, nodes, reason.replace("_", " ")) if state else None


def _output(run: Run, command: list[str]) -> str:
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
        last = last_line(problem, f"exit code {answer.returncode}")
        raise NoAnswer(f"{program}: {last.removeprefix(f'{program}: ')}")
    return answer.stdout


def _row(output: str, columns: int, job: str) -> list[str] | None:
    """The cells of this job's line after its id. Other lines, such as warnings, are skipped."""
    for line in output.splitlines():
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


@functools.cache
def _sentences(kind: str) -> dict[str, str]:
    return yaml.safe_load(Path(__file__).with_name("reasons.yaml").read_text())[kind]


def explain_reason(reason: str, restarts: int | None = 0) -> str:
    """Why a job waits, for people.

    Args:
        reason: as squeue prints it: "Priority", "ReqNodeNotAvail, UnavailableNodes:n2".
        restarts: how often the job was requeued.
    """
    if reason == "BeginTime" and restarts:
        return _sentences("pending")[AGAIN]
    for pattern, text in _sentences("pending").items():
        if fnmatchcase(reason, pattern):
            return text
    return f"Slurm says '{reason}', which we have no words for; your site's support knows what it means"


def explain_refusal(stderr: str) -> str:
    """What to change, from sbatch's rejection message."""
    # If a limit is the cause, its name is in a line before the general message.
    for line in stderr.splitlines():
        text = line.removeprefix("sbatch: ").removeprefix("error: ").removeprefix("Batch job submission failed: ")
        for pattern, remedy in _sentences("refused").items():
            if fnmatchcase(text, pattern):
                return remedy
        if text.startswith(("QOS", "Assoc")) and " " not in text:
            return explain_reason(text)
    return "Slurm's own words say why; your site's support knows its rules"


def describe_partition(there: Transport, name: str | None) -> str | None:
    """For people: "nodes of 64 CPUs and 515 GB; DefMemPerCPU=8000 MB; OverSubscribe=EXCLUSIVE: jobs get whole nodes".

    None if Slurm does not answer.
    """
    of_it = [f"--partition={name}"] if name else []
    sizes = SIZE.findall(there.run(["sinfo", "--noheader", *of_it, "--format=%c|%m"]).stdout)
    partition = there.run(["scontrol", "show", "partition", *([name] if name else [])]).stdout
    own = dict(re.findall(r"(\w+)=(\S+)", partition))
    if not sizes or not own:
        return None
    site = dict(re.findall(r"^(\w+) *= *(\S+)", there.run(["scontrol", "show", "config"]).stdout, re.MULTILINE))
    facts = site | {key: value for key, value in own.items() if value not in NO_LIMIT}  # the site's defaults apply, too
    cpus, memory = (_range([int(size[index]) for size in sizes]) for index in (0, 1))
    shown = [f"nodes of {cpus} CPUs and {memory} MB"]
    shown += [f"{key}={facts[key]} MB" for key in MEMORY if facts.get(key, "0") not in NO_LIMIT]
    shown += [f"{key}={facts[key]}" for key in CPUS if facts.get(key, "0") not in NO_LIMIT]
    if sharing := facts.get("OverSubscribe"):
        shown.append(f"OverSubscribe={sharing}" + (": every job gets whole nodes" if sharing == "EXCLUSIVE" else ""))
    if facts.get("JobDefaults", "(null)") not in NO_LIMIT:
        shown.append(f"JobDefaults={facts['JobDefaults']}")
    return "; ".join(shown)


def _range(numbers: list[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
