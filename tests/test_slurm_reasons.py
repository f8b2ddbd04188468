"""Why jobs wait and are refused, as a real Slurm with accounting says it, and what we make of it."""

import re
from pathlib import Path

import pytest
from slurm_support import Cluster

import nemotron_cluster.slurm
from nemotron_cluster.slurm.scheduler import explain_reason, explain_refusal, find_job

pytestmark = pytest.mark.slow

SHORT = ["-t", "5"]
"""So that no job waits because of the reservation: that has a test of its own."""
QOS = {
    "one": ["MaxJobsPerUser=1"],
    "gpus": ["MaxTRESPerUser=gres/gpu=4"],
    "short": ["MaxWall=10"],
    "narrow": ["MaxTRESPerJob=node=1"],
    "node": ["MaxTRESPerUser=node=1"],
    "together": ["GrpJobs=1"],
    "pool": ["GrpTRES=gres/gpu=2"],
    "least": ["MinTRESPerJob=gres/gpu=2"],
    "queue": ["MaxSubmitJobsPerUser=1"],
    "strict": ["Flags=DenyOnLimit", "MaxTRESPerJob=node=1", "MaxWall=10"],
}

WAITING = [
    # reason, options of the jobs before it, its own options, a part of the sentence
    ("QOSMaxJobsPerUserLimit", ["--qos=one"], "--qos=one", "as many of your jobs run as your QOS allows"),
    ("QOSMaxGRESPerUser", ["--qos=gpus --gpus=4"], "--qos=gpus --gpus=1", "as much as the QOS gives one user"),
    ("QOSMaxNodePerUserLimit", ["--qos=node"], "--qos=node -w n2", "as much as the QOS gives one user"),
    ("QOSMaxWallDurationPerJobLimit", [], "--qos=short -t 60", "never starts; lower `time`"),
    ("QOSMaxNodePerJobLimit", [], "--qos=narrow -N2", "never starts; lower `nodes`"),
    ("QOSGrpJobsLimit", ["--qos=together"], "--qos=together", "the jobs of all in this QOS"),
    ("QOSGrpGRES", ["--qos=pool --gpus=2"], "--qos=pool --gpus=1", "the jobs of all in this QOS"),
    ("QOSMinGRES", [], "--qos=least --gpus=1", "less than its QOS demands"),
    ("AssocMaxJobsLimit", ["-A small"], "-A small", "your account's jobs run"),
    ("AssocMaxWallDurationPerJobLimit", [], "-A small -t 60", "never starts; lower `time`"),
    ("PartitionTimeLimit", [], "-p debug -t 60", "never starts; lower `time`"),
    ("PartitionNodeLimit", [], "-p debug -N2", "never starts; lower `nodes`"),
    ("PartitionConfig", [], "-n 100", "more than its partition has"),
    ("PartitionDown", [], "-p closed", "takes no jobs at the moment"),
    ("Dependency", [""], "-d afterok:LAST", "waits for the jobs that it comes after"),
    ("DependencyNeverSatisfied", ["--wrong"], "-d afterok:LAST", "has failed, so it never starts"),
    ("BeginTime", [], "--begin=now+1hour", "not start before the time"),
    ("JobHeldUser", [], "--hold", "`scontrol release ID`"),
    ("Reservation", [], "--reservation=later", "waits for its reservation"),
    ("ReqNodeNotAvail, May be reserved for other job", [], "-t 9-0 -w n1", "promised to another job or to maintenance"),
    ("Resources", ["-N2 --exclusive"], "-N2 --exclusive", "it is the next one"),
    ("Priority", ["-N2 --exclusive", "-N2 --exclusive"], "-N2 --exclusive", "other jobs come first"),
    ("ReqNodeNotAvail, UnavailableNodes:n2", ["DRAIN"], "-w n2", "`sinfo -R`"),
    ("Nodes required for job are DOWN, DRAINED or reserved*", ["DRAIN"], "-N2", "`sinfo -R`"),
]

REFUSED = [
    # options, a part of what sbatch says, a part of what we say
    ("-A nobody", "Invalid account or account/partition combination", "change `account`"),
    ("-p nosuch", "invalid partition specified: nosuch", "change `partition`"),
    ("--qos=absent", "Invalid qos specification", "change `qos`"),
    ("--gpus-per-node=9", "Requested node configuration is not available", "no node has what is asked for"),
    ("--mem=999G", "Memory specification can not be satisfied", "lower `mem`"),
    ("-C h100", "Invalid feature specification", "change `constraint`"),
    ("--gres=tpu:1", "Invalid generic resource", "no such GPUs"),
    ("--reservation=none", "Requested reservation is invalid", "change `reservation`"),
    ("-w n9", "Invalid node name specified", "correct the names of nodes"),
    ("-t abc", "Invalid --time specification", "write `time` as"),
    ("--mem=abc", "Invalid --mem specification", "write `mem` as"),
    ("--signal=nonsense", "Invalid --signal specification", "correct this option"),
    ("--no-such-option", "unrecognized option", "`extra_directives`"),
    ("-p resting", "Required partition not available (inactive or drain)", "takes no new jobs"),
    ("--qos=strict -N2", "QOSMaxNodePerJobLimit", "lower `nodes`"),
    ("--qos=strict -t 60", "QOSMaxWallDurationPerJobLimit", "lower `time`"),
    ("--qos=queue", "QOSMaxSubmitJobPerUserLimit", "wait until one ends"),
]


@pytest.fixture(scope="module")
def site(accounting_slurm: Cluster) -> Cluster:
    """A site with rules."""
    cluster = accounting_slurm
    for name, limits in QOS.items():
        cluster.checked("head", "sacctmgr", "-i", "add", "qos", name, *limits)
    cluster.checked("head", "sacctmgr", "-i", "add", "account", "small", "MaxJobs=1", "MaxWall=10", "Cluster=test")
    cluster.checked("head", "sacctmgr", "-i", "add", "user", "root", "Account=small")
    allowed = ",".join(["normal", *QOS])
    cluster.checked("head", "sacctmgr", "-i", "modify", "user", "root", "account=demo", "set", f"qos={allowed}")
    for name, state in (("closed", "DOWN"), ("resting", "INACTIVE")):
        cluster.checked("head", "scontrol", "create", f"PartitionName={name}", "Nodes=n1", f"State={state}")
    reservation = ["ReservationName=later", "StartTime=now+1day", "Duration=10", "Nodes=n1", "Users=root"]
    cluster.checked("head", "scontrol", "create", "reservation", *reservation)
    return cluster


@pytest.mark.parametrize(("reason", "before", "options", "part"), WAITING, ids=[row[0].split()[0] for row in WAITING])
def test_why_a_job_waits(site: Cluster, reason: str, before: list[str], options: str, part: str) -> None:
    job = ""
    for each in before:
        if each == "DRAIN":
            site.checked("head", "scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=disk")
        elif each == "--wrong":
            job = site.script("exit 1")
            site.wait_for(job, "FAILED")
        else:
            job = site.script("sleep 1000", *SHORT, *each.split())
    job = site.script("sleep 1000", *SHORT, *options.replace("LAST", job).split())

    def said() -> str:
        facts = find_job(lambda command: site.run("head", *command), job)
        assert facts is not None
        return facts.reason

    expected = re.compile(re.escape(reason).replace(r"\*", ".*"))
    try:
        site.wait_until(lambda: expected.fullmatch(said()), minutes=2)
        assert part in explain_reason(said())
    finally:
        site.clear()
        if "DRAIN" in before:
            site.checked("head", "scontrol", "update", "NodeName=n2", "State=RESUME")


@pytest.mark.parametrize(("options", "theirs", "ours"), REFUSED, ids=[row[0] for row in REFUSED])
def test_why_a_job_is_refused(site: Cluster, options: str, theirs: str, ours: str) -> None:
    if options == "--qos=queue":
        site.script("sleep 1000", options)
    answer = site.run("head", "sbatch", *options.split(), "--wrap", "sleep 1000")
    site.clear()
    assert answer.returncode
    assert theirs in answer.stderr
    assert ours in explain_refusal(answer.stderr)


def test_the_commands_in_the_sentences_work(site: Cluster) -> None:
    text = (Path(nemotron_cluster.slurm.__file__).parent / "reasons.yaml").read_text()
    commands = set(re.findall(r"`((?:sinfo|scontrol|sacctmgr|squeue|sbatch) [^`]+)`", text))
    assert len(commands) > 10
    held = site.script("true", "--hold")
    for command in commands:
        site.checked("head", "sh", "-c", f"USER=root; {command.replace('ID', held)}")
    site.clear()


def test_what_accounting_remembers(site: Cluster) -> None:
    """sacct alone, as it is when the queue has forgotten the job."""
    job = site.script("kill -9 $$", *SHORT)
    site.wait_for(job, "FAILED")

    def by_sacct() -> object:
        alone = ["true"]  # squeue that knows nothing
        facts = find_job(lambda command: site.run("head", *(command if command[0] == "sacct" else alone)), job)
        return facts and (facts.source, facts.state, facts.exit_code, facts.signal, facts.nodes)

    site.wait_until(lambda: by_sacct() == ("sacct", "FAILED", 0, 9, "n1"), minutes=1)
