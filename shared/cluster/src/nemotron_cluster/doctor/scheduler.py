"""Check Slurm with its own commands: partitions, limits of accounts and queues, and how it ends and requeues jobs."""

import re
import shlex
from collections.abc import Iterator, Sequence

from nemotron_cluster.doctor.report import Check, Checks, Group
from nemotron_cluster.job import Job
from nemotron_cluster.profiles.schema import TIME, Slurm
from nemotron_cluster.slurm.partition import gives
from nemotron_cluster.slurm.resources import WHOLE_FROM, asked_of
from nemotron_cluster.slurm.script import seconds_of
from nemotron_cluster.slurm.submit import require_answer
from nemotron_cluster.transport import Transport
from nemotron_shared.errors import UserError, did_you_mean

SCHEDULER = Group("scheduler")
UNUSABLE = re.compile(r"down|drain|fail|unk|maint|\*$|boot|power")
LONG_ENOUGH = 30
"""Minimum seconds between the signal to end and SIGKILL, needed to write a checkpoint."""
USUAL_EXPIRY = 120
NAME = re.compile(r"[\w.@+-]+")
LIKE_THIS = "a job like this"
QOS_KEYS = ("Name", "MaxWall", "MaxJobsPU", "MaxSubmitPU", "MaxTRES", "MaxTRESPU", "GrpTRES", "GrpJobs")


def minutes(limit: str) -> float | None:
    """A Slurm time limit in minutes; None if unlimited."""
    return seconds_of(limit) / 60 if TIME.fullmatch(limit) else None


def asked(profile: Slurm) -> list[str]:
    """Options for the resources of a job of this profile, for both sbatch and srun."""
    values = {
        "account": profile.account,
        "partition": profile.batch_partition or profile.partition,
        "qos": profile.qos,
        "reservation": profile.reservation,
        "constraint": profile.constraint,
        "nodes": str(profile.nodes),
        "mem": profile.mem,
        "cpus-per-task": str(profile.cpus_per_task) if profile.cpus_per_task else None,
    }
    options = [f"--{name}={value}" for name, value in values.items() if value]
    if profile.gpus_per_node and profile.gpus_option != "none":
        count = f"gpu:{profile.gpus_per_node}" if profile.gpus_option == "gres" else profile.gpus_per_node
        options.append(f"--{profile.gpus_option}={count}")
    return options + (["--exclusive"] if profile.exclusive else [])


def checks(profile: Slurm, there: Transport) -> Iterator[Check]:
    """All checks that do not start a job."""
    parts = {
        "partition": lambda: _partition(profile, there),
        "settings": lambda: _settings(profile, there),
        "limits": lambda: _limits(profile, there),
        "container": lambda: _container(profile, there),
        LIKE_THIS: lambda: _test_only(profile, there),
    }
    for name, part in parts.items():
        yield from SCHEDULER.guarded(name, part)


def _said(there: Transport, *command: str) -> str:
    """Output of a command.

    Raises:
        UserError: it failed.
    """
    answer = there.run(command)
    if answer.returncode:
        require_answer(there, answer)
        last = (answer.stderr.strip() or answer.stdout.strip() or "no message").splitlines()[-1]
        raise UserError(f"{command[0]}: {last}", f"try it there yourself: {shlex.join(command)}")
    return answer.stdout


def _partition(profile: Slurm, there: Transport) -> Checks:
    """Compare the partitions of the profile with those that sinfo lists."""
    lines = _said(there, "sinfo", "--noheader", "--format=%P|%a|%l|%D|%G|%T").splitlines()
    rows = [[cell.strip() for cell in line.split("|")] for line in lines if line.count("|") == 5]
    if not rows:
        yield SCHEDULER.fail("partitions", "sinfo lists none", "ask the site's help desk which ones are yours")
        return
    names = list(dict.fromkeys(row[0].rstrip("*") for row in rows))
    default = next((row[0].rstrip("*") for row in rows if row[0].endswith("*")), None)
    chosen = dict.fromkeys([profile.batch_partition, profile.run_partition, profile.build_partition, profile.partition])
    wanted = [name for name in chosen if name] or [default]
    for name in wanted:
        if name is None:
            yield SCHEDULER.fail("partition", "the profile names none, and the site has no default", "set partition")
        elif unknown := [one for one in name.split(",") if one not in names]:
            near = did_you_mean(unknown[0], names, f"there are: {', '.join(names)}")
            yield SCHEDULER.fail("partition", f"there is no partition '{unknown[0]}'", near or "")
        else:
            own = [row for row in rows if row[0].rstrip("*") in name.split(",")]
            build = name == profile.build_partition and name != profile.partition
            yield from _fits(profile, name, own, nodes=1 if build else profile.nodes, gpus=not build)
            if given := gives(there, name):
                yield SCHEDULER.ok(f"resources of {name}", given)


def _fits(profile: Slurm, name: str, rows: list[list[str]], *, nodes: int, gpus: bool) -> Iterator[Check]:
    there = f"partition {name}"
    if all(row[1] != "up" for row in rows):
        yield SCHEDULER.fail(there, f"is {rows[0][1]}", "wait, or take another one")
        return
    counts = [(int(row[3]), not UNUSABLE.search(row[5]), row[4]) for row in rows if row[3].isdecimal()]
    total, usable = sum(count for count, *_ in counts), sum(count for count, good, _ in counts if good)
    if nodes > total:
        yield SCHEDULER.fail(there, f"has {total} nodes, and the profile asks for {nodes}", "ask for fewer (nodes)")
    elif nodes > usable:
        what = f"{usable} of {total} nodes can be used now, and the profile asks for {nodes}: a job would wait"
        yield SCHEDULER.warn(there, what, "see why: sinfo --list-reasons")
    else:
        yield SCHEDULER.ok(there, f"{usable} of {total} nodes can be used")
    most = max((_gpus(gres) for *_, gres in counts), default=0)
    if gpus and profile.gpus_per_node > most and profile.gpus_option != "none":
        what = f"its nodes have {most or 'no'} GPUs, and the profile asks for {profile.gpus_per_node} on each"
        yield SCHEDULER.fail(there, what, "correct gpus_per_node, or take another partition")
    limits, mine = [minutes(row[2]) for row in rows], minutes(profile.time) or 0
    longest = None if None in limits else max((limit for limit in limits if limit is not None), default=None)
    if longest is not None and mine > longest:
        what = f"jobs end after {rows[0][2]}, and the profile asks for {profile.time}"
        yield SCHEDULER.fail(there, what, f'set time = "{rows[0][2]}": what is not finished is queued again')


def _gpus(gres: str) -> int:
    """GPUs per node from a gres string: `gpu:8`, `gpu:h100:8(S:0-1)` or `gpu:a100:4,gpu:v100:2`."""
    return sum(int(count) for count in re.findall(r"gpu(?::[^:,()]+)?:(\d+)", gres))


def _settings(profile: Slurm, there: Transport) -> Checks:
    """Check how Slurm ends and requeues jobs, which our jobs rely on."""
    pairs = (line.partition("=") for line in _said(there, "scontrol", "show", "config").splitlines())
    values = {name.strip(): value.strip() for name, _, value in pairs if name.strip()}
    yield SCHEDULER.ok("Slurm", values.get("SLURM_VERSION", "of an unknown version"))
    wait = re.match(r"\d+", values.get("KillWait", ""))
    if wait and int(wait[0]) < LONG_ENOUGH:
        what = f"a cancelled job is killed {wait[0]} s after it is told to end, which is short for a checkpoint"
        yield SCHEDULER.warn("KillWait", what, "save more often (checkpoint.save_interval) before cancelling jobs")
    if values.get("PreemptMode", "OFF") not in ("OFF", "") and profile.requeue:
        told = "send_user_signal" in values.get("SlurmctldParameters", "") + values.get("PreemptParameters", "")
        if told:
            yield SCHEDULER.ok("PreemptMode", f"{values['PreemptMode']}, and a job is told before")
        else:
            what = f"{values['PreemptMode']}, without send_user_signal: a preempted job is not told before"
            yield SCHEDULER.warn("PreemptMode", what, "it continues from its last checkpoint: save often enough")
    expiry = re.search(r"cred_expire=(\d+)", values.get("AuthInfo", ""))
    seconds = int(expiry[1]) if expiry else USUAL_EXPIRY
    if profile.requeue:
        yield SCHEDULER.ok("requeue", f"a job that is queued again waits {seconds + 1} s before it can start")
    if values.get("ProctrackType", "").endswith(("linuxproc", "pgid")):
        what = f"{values['ProctrackType']}: what a job puts into the background can outlive it"
        yield SCHEDULER.warn("ProctrackType", what, "after a Ray job that was killed, look for processes on its nodes")


def _limits(profile: Slurm, there: Transport) -> Checks:
    """Check the user's accounts and queues (QOS), and the number of jobs that a queue accepts."""
    user = _said(there, "id", "-un").strip()
    if not NAME.fullmatch(user):
        raise UserError(f"id -un says {user[:40]!r}", "try it there yourself: it should print a user's name alone")
    form = "format=Account,Partition,QOS,DefaultQOS"
    answer = there.run(["sacctmgr", "-nP", "show", "assoc", "where", f"user={user}", form])
    rows = [line.split("|") for line in answer.stdout.splitlines() if line.count("|") == 3]
    if answer.returncode or not rows:
        why = (answer.stderr.strip() or f"no association of {user} is shown").splitlines()[-1]
        yield SCHEDULER.skip("limits", f"sacctmgr tells nothing: {why}")
        return
    accounts = list(dict.fromkeys(row[0] for row in rows))
    if profile.account and profile.account.lower() not in [one.lower() for one in accounts]:
        near = did_you_mean(profile.account, accounts, f"yours are: {', '.join(accounts)}")
        yield SCHEDULER.fail("account", f"{user} has no account '{profile.account}'", near or "")
    else:
        yield SCHEDULER.ok("account", profile.account or f"the default one of: {', '.join(accounts)}")
    mine = [row for row in rows if not profile.account or row[0].lower() == profile.account.lower()]
    allowed = {name for row in mine for name in row[2].split(",") if name}
    if profile.qos and allowed and profile.qos not in allowed:
        near = did_you_mean(profile.qos, allowed, f"there are: {', '.join(sorted(allowed))}")
        yield SCHEDULER.fail("qos", f"the account may not use '{profile.qos}'", near or "")
        return
    shown = _said(there, "sacctmgr", "-nP", "show", "qos", f"format={','.join(QOS_KEYS)}").splitlines()
    every = {line.split("|")[0]: dict(zip(QOS_KEYS, line.split("|"), strict=False)) for line in shown}
    default = next((row[3] for row in mine if row[3]), "")
    for name in dict.fromkeys([profile.qos or default, _partition_qos(profile, there)]):
        if NAME.fullmatch(name) and name in every:
            yield from _qos(profile, name, every[name], there)


def _partition_qos(profile: Slurm, there: Transport) -> str:
    name = profile.batch_partition or profile.partition
    said = there.run(["scontrol", "show", "partition", *([name] if name else [])]).stdout
    found = re.search(r"\bQoS=(\S+)", said)
    return found[1] if found else ""


def _qos(profile: Slurm, name: str, limits: dict[str, str], there: Transport) -> Iterator[Check]:
    queue, wrong = f"qos {name}", []
    longest = minutes(limits.get("MaxWall") or "")
    if longest is not None and (minutes(profile.time) or 0) > longest:
        wrong.append(f"jobs end after {limits['MaxWall']}, and the profile asks for {profile.time}")
    wanted = {"node": profile.nodes, "gres/gpu": profile.nodes * profile.gpus_per_node}
    for key in ("MaxTRES", "MaxTRESPU", "GrpTRES"):
        for thing, most in re.findall(r"([\w/]+)=(\d+)", limits.get(key) or ""):
            if wanted.get(thing, 0) > int(most):
                wrong.append(f"{key} is {thing}={most}, and the profile asks for {wanted[thing]}")
    if wrong:
        yield SCHEDULER.fail(queue, "; ".join(wrong), "ask for less, or for another qos")
        return
    running = [line for line in there.run(["squeue", "--me", "-h", f"--qos={name}", "-o", "%i"]).stdout.split() if line]
    said = []
    for key, what in (("MaxJobsPU", "runs"), ("MaxSubmitPU", "takes")):
        if not (limits.get(key) or "").isdecimal():
            continue
        most = int(limits[key])
        said.append(f"{what} {most} job{'s' if most > 1 else ''} of a user")
        if len(running) >= most:
            then = "the next one waits" if what == "runs" else "the next one is refused"
            have = f"you have {len(running)} there: {', '.join(running[:5])}"
            yield SCHEDULER.warn(queue, f"{said[-1]}, and {have}; {then}", "let it end, or cancel it with scancel")
            return
    yield SCHEDULER.ok(queue, " and ".join(said) or "no limit of jobs")


def _container(profile: Slurm, there: Transport) -> Checks:
    runtime = profile.container_runtime or ("pyxis" if profile.container_image else None)
    if runtime == "pyxis":
        if "--container-image" in _said(there, "srun", "--help"):
            yield SCHEDULER.ok("pyxis", "srun takes --container-image")
        else:
            remedy = 'set container_runtime = "apptainer" or "none", or ask the site for pyxis'
            yield SCHEDULER.fail("pyxis", "srun has no --container-image", remedy)


def _test_only(profile: Slurm, there: Transport) -> Checks:
    """Let Slurm test a job of this size, without queueing it."""
    fills = profile.gpus_per_node >= WHOLE_FROM
    like = asked_of(Job("doctor", (), gpus_per_node=profile.gpus_per_node, whole_nodes=fills), profile)
    whole = ["--exclusive"] if like.exclusive and not profile.exclusive else []
    whole += [f"--mem={like.mem}"] if like.mem != profile.mem else []
    options: Sequence[str] = [*asked(profile), *whole, f"--time={profile.time}", *profile.extra_directives]
    answer = there.run(["sbatch", "--test-only", *options, "--wrap=true"])
    require_answer(there, answer)
    said = (answer.stderr.strip() or answer.stdout.strip() or "no message").splitlines()[-1]
    said = re.sub(r"^(?:sbatch|allocation failure|error): (?:error: )?", "", said)
    if answer.returncode:
        yield SCHEDULER.fail(LIKE_THIS, f"would be refused: {said}", "correct what Slurm names in the profile")
    else:
        yield SCHEDULER.ok(LIKE_THIS, re.sub(r"^Job \d+ to start", "would start", said))
