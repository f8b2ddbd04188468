"""What other programs print: logs of jobs, and what Slurm says."""

from pathlib import Path
from subprocess import CompletedProcess

from nemotron_cluster.diagnose.causes import Diagnosis, diagnose, rules
from nemotron_cluster.diagnose.causes import Facts as Known
from nemotron_cluster.diagnose.logs import read_logs
from nemotron_cluster.slurm.scheduler import CONDITIONS, Facts, explain_reason, explain_refusal, find_job
from nemotron_prove.input.second import fault_of, require
from nemotron_prove.input.target import Files, Target

TRACE = b"""2026-01-31 12:00:00 step 1 loss 3.2
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
error: tiny.yaml: unknown key 'train.train_iter'
  did you mean 'train.train_iters'?
slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-01-31T12:00:05 DUE TO TIME LIMIT ***
"""
QUEUE = b"1234|TIMEOUT|15|1|2026-01-31T12:00:00|n[1-4]|NonZeroExitCode|\n"
ACCOUNT = b"1234|CANCELLED by 1000|0:15|2026-01-31T12:00:00|n1|None\n"
CONTROL = (
    b"JobId=1234 JobState=FAILED Reason=Node_Down Restarts=2 StartTime=2026-01-31T12:00:00 NodeList=n1 ExitCode=3:0\n"
)
REFUSED = (
    b"sbatch: error: QOSMaxGRESPerUser\n"
    b"sbatch: error: Batch job submission failed: Job violates accounting/QOS policy\n"
)
SAID = {"squeue": "queue.log", "sacct": "account.log", "scontrol": "control.log"}


def _logs() -> list[Files]:
    examples = "\n".join(rule.example for rule in rules()).encode()
    return [{"job.log": TRACE}, {"job.log": examples}, {"slurm-12.out": TRACE, "slurm-13.out": b"fine\n"}]


def _diagnose(folder: Path, files: Files) -> Diagnosis:
    found = diagnose(read_logs(folder), Known("failed", "exit_code", "ended with exit code 1", exit_code=1))
    found.last_lines()
    return found


def _diagnose_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        assert isinstance(made, Diagnosis)
        for one in made.findings:
            text = files[one.place].decode("utf-8", "replace") if one.place in files else ""
            require(one.line is None or 1 <= one.line <= text.count("\n") + 1, "a line that is not there")
            require(one.text.isprintable(), "control characters for the terminal")
            require(len(one.text) < 2000, "a line that fills the terminal")

    return fault_of(read)


def _slurm() -> list[Files]:
    said = {
        "queue.log": QUEUE,
        "account.log": ACCOUNT,
        "control.log": CONTROL,
        "refused.log": REFUSED,
        "exit.log": b"3\n",
    }
    return [said, {**said, "queue.log": b""}, {**said, "queue.log": b"", "account.log": b""}, {"exit.log": b"0\n"}]


def _ask(folder: Path, files: Files) -> Facts | None:
    def run(command: list[str]) -> CompletedProcess[str]:
        text = files.get(SAID[command[0]], b"").decode("utf-8", "replace")
        return CompletedProcess(command, 0, text, "")

    said = find_job(run, "1234", lambda: files.get("exit.log", b"").decode("utf-8", "replace"))
    assert explain_refusal(files.get("refused.log", b"").decode("utf-8", "replace"))
    if said:
        assert explain_reason(said.reason, said.restarts)
    return said


def _ask_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        if not isinstance(made, Facts):
            return
        known = {state for states in CONDITIONS.values() for state in states}
        require(made.over <= (made.state in known), "an unknown state that ends a job")
        require(made.restarts is None or made.restarts >= 0, "restarts that are no count")
        ended = made.exit_code
        require(ended is None or (ended >= 0 and made.over), "an exit code of a job that is not over")
        require("\n" not in made.state and " " not in made.state, "a state of several words")

    return fault_of(read)


WORDS = (
    "TIMEOUT",
    "|",
    "JobState=",
    "Traceback (most recent call last):\n",
    "CUDA out of memory",
    "\x1b[31m",
    "\r",
    "²",
    "٣",
)
TARGETS = (
    Target("diagnose", "logs of jobs", _logs, _diagnose, _diagnose_fault, WORDS, share=0.05),
    Target("slurm", "what Slurm says", _slurm, _ask, _ask_fault, WORDS, share=20, in_files=False),
)
