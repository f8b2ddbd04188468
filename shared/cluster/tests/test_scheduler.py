"""What Slurm's programs say of a job, in the forms that sites have; tests/test_slurm_scheduler.py asks real ones."""

from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

from nemotron_cluster.slurm.scheduler import Facts, Run, find_job
from nemotron_cluster.transport import NoAnswer
from nemotron_shared.system.errors import UserError

GONE = "slurm_load_jobs error: Invalid job id specified"
Said = str | tuple[int, str] | UserError


def scheduler(**says: Said) -> tuple[Run, list[str]]:
    """One whose programs say this: standard output, or exit code and standard error. And who was asked."""
    asked: list[str] = []

    def run(command: list[str]) -> CompletedProcess[str]:
        asked.append(command[0])
        said = says.get(command[0], (1, GONE))
        if isinstance(said, UserError):
            raise said
        code, error = (0, "") if isinstance(said, str) else said
        return CompletedProcess(command, code, said if isinstance(said, str) else "", error)

    return run, asked


def told(exit_code: Callable[[], str | None] = lambda: None, **says: Said) -> Facts | None:
    return find_job(scheduler(**says)[0], "7", exit_code)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("7|RUNNING|0|0|2026|n[1-2]|None|", Facts("7", "RUNNING", "squeue", "", None, None, "n[1-2]", 0, "2026")),
        ("7|FAILED|768|0|N/A|n1|NonZeroExitCode|", Facts("7", "FAILED", "squeue", "NonZeroExitCode", 3, None, "n1", 0)),
        ("7|FAILED|9|0|N/A|n1|JobLaunchFailure|", Facts("7", "FAILED", "squeue", "JobLaunchFailure", 0, 9, "n1", 0)),
        ("7|FAILED|3:0|0|N/A|n1|NonZeroExitCode|", Facts("7", "FAILED", "squeue", "NonZeroExitCode", 3, None, "n1", 0)),
        ("7|PENDING|768|2|N/A||BeginTime|", Facts("7", "PENDING", "squeue", "BeginTime", None, None, "", 2)),
        (
            "7|PENDING|0|0|N/A||ReqNodeNotAvail, UnavailableNodes:n2|",
            Facts("7", "PENDING", "squeue", "ReqNodeNotAvail, UnavailableNodes:n2", None, None, "", 0),
        ),
        ("7 |PENDING   |0|x|N/A|(null)|odd | reason|", Facts("7", "PENDING", "squeue", "odd | reason")),
    ],
)  # fmt: skip
def test_squeue(line: str, expected: Facts) -> None:
    assert told(squeue=f"warning: something\n70|RUNNING|0|0|N/A|n1|None|\n{line}\n") == expected


def test_sacct_where_squeue_has_forgotten_the_job() -> None:
    facts = told(sacct="7|CANCELLED by 1000|0:15|2026-11-23T02:29:34|n1|None\n")
    assert facts == Facts("7", "CANCELLED", "sacct", "", 0, 15, "n1", None, "2026-11-23T02:29:34")
    assert facts.over and facts.condition == "cancelled"


def test_scontrol_where_squeue_has_columns_that_we_do_not_know() -> None:
    says = (
        "JobId=7 JobName=a JobState=PENDING Reason=ReqNodeNotAvail,_UnavailableNodes:n2 Dependency=(null) Restarts=1 "
    )
    facts = told(squeue="", sacct=(1, "Slurm accounting storage is disabled"), scontrol=says + "ExitCode=0:0 NodeList=")
    assert facts == Facts("7", "PENDING", "scontrol", "ReqNodeNotAvail, UnavailableNodes:n2", restarts=1)


@pytest.mark.parametrize(
    "sacct", [(1, "Slurm accounting storage is disabled"), (127, "sacct: not found"), UserError("no sacct")]
)
def test_the_exit_code_of_the_job_itself_comes_last(sacct: Said) -> None:
    assert told(lambda: "130\n", sacct=sacct) == Facts("7", "FAILED", "exit_code", exit_code=130)
    assert told(lambda: "0\n", sacct=sacct) == Facts("7", "COMPLETED", "exit_code", exit_code=0)
    assert told(lambda: None, sacct=sacct) is None
    assert told(lambda: "", sacct=sacct) is None


@pytest.mark.parametrize(
    "silence",
    [
        NoAnswer("squeue did not answer within 120 s"),
        UserError("login cannot be reached"),
        (1, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"),
        (1, ""),
    ],
)
def test_silence_is_not_an_end(silence: Said) -> None:
    with pytest.raises(NoAnswer, match="the state of job 7 is not known"):
        told(squeue=silence, scontrol=silence)
    # another source still says how it is, and the exit code that it wrote is one
    assert told(squeue=silence, sacct="7|RUNNING|0:0|Unknown|n1|\n") == Facts("7", "RUNNING", "sacct", nodes="n1")
    assert told(lambda: "1", squeue=silence, scontrol=silence) == Facts("7", "FAILED", "exit_code", exit_code=1)


def test_a_job_that_only_a_silent_database_remembers_is_not_known_to_have_never_been() -> None:
    with pytest.raises(NoAnswer, match="Problem talking to the database"):
        told(sacct=(1, "sacct: error: Problem talking to the database: Connection refused"))


def test_sources_are_asked_until_one_knows() -> None:
    run, asked = scheduler(sacct="7|COMPLETED|0:0|Unknown|n1|\n")
    facts = find_job(run, "7")
    assert facts is not None and facts.condition == "done"
    assert asked == ["squeue", "sacct"]


def test_a_state_that_we_have_never_heard_of_is_no_end() -> None:
    facts = told(squeue="7|HIBERNATING|0|0|N/A|n1|None|\n")
    assert facts is not None
    assert (facts.condition, facts.over) == ("unknown", False)
