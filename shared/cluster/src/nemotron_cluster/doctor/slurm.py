"""Check Slurm and its nodes.

Slurm's own commands tell partitions, limits of accounts and queues, and how jobs are ended and requeued. Then one short
srun runs the probe on as many nodes as the profile uses: every node writes a file into the shared folder, and waits for
the files of all others.
"""

import json
import re
import secrets
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from nemotron_cluster.doctor import packages
from nemotron_cluster.doctor.machine import FILES_WANTED, check_room
from nemotron_cluster.doctor.packages import Facts, is_shared
from nemotron_cluster.doctor.report import Check, Checks, Group, on_all
from nemotron_cluster.job import Job
from nemotron_cluster.limits import seconds_of
from nemotron_cluster.profiles import Slurm
from nemotron_cluster.slurm.scheduler import describe_partition, require_answer, test_only
from nemotron_cluster.slurm.script import WHOLE_FROM, render, site_options
from nemotron_cluster.transport import NoAnswer, Transport, last_line
from nemotron_shared.system.disk import size
from nemotron_shared.system.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from packaging.requirements import Requirement

SCHEDULER, NODES = Group("scheduler"), Group("nodes")
UNUSABLE = re.compile(r"down|drain|fail|unk|maint|\*$|boot|power")
LONG_ENOUGH = 30
"""Minimum seconds between the signal to end and SIGKILL, needed to write a checkpoint."""
USUAL_EXPIRY = 120
NAME = re.compile(r"[\w.@+-]+")
JOB = "nemotron-doctor"
LIKE_THIS = "a job like this"
QOS_KEYS = ("Name", "MaxWall", "MaxJobsPU", "MaxSubmitPU", "MaxTRES", "MaxTRESPU", "GrpTRES", "GrpJobs")
MINUTES = 10
SLOW_NAME = 5.0
"""Seconds. A lookup that waits for an unresponsive name server takes 25."""
SLOW_WRITE = 2.0
CLOCKS = 5.0
OF_THE_NODE = "python3"
PASSED_ON = "HOME,PATH,USER,LANG,LD_LIBRARY_PATH"
NAME_SHARED = "name a folder on the cluster's shared file system"
NAME_OWN = "name a folder that is yours and that all nodes see (remote_job_dir, or home)"
REPAIR_NAMES = "have /etc/hosts or the name server repaired"


def minutes(limit: str) -> float | None:
    """A Slurm time limit in minutes; None without one (0, UNLIMITED), or where Slurm tells none."""
    try:
        seconds = seconds_of(limit)
    except ValueError:
        return None
    return None if seconds is None else seconds / 60


def _is_longer(limit: str, other: str) -> bool:
    """Whether one time limit ends after another; without a limit, nothing ends."""
    one, until = minutes(limit), minutes(other)
    return until is not None and (one is None or one > until)


def check_scheduler(profile: Slurm, there: Transport) -> Iterator[Check]:
    """All checks that do not start a job."""
    batch = _in_batch_partition(profile)
    parts = {
        "partition": lambda: _partitions(profile, there),
        "settings": lambda: _settings(profile, there),
        "limits": lambda: _limits(batch, there),
        "container": lambda: _container(profile, there),
        LIKE_THIS: lambda: _test_only(batch, there),
    }
    for name, part in parts.items():
        yield from SCHEDULER.guarded(name, part)


def _in_batch_partition(profile: Slurm) -> Slurm:
    return profile.model_copy(update={"partition": profile.batch_partition or profile.partition})


def _output(there: Transport, *command: str) -> str:
    """Output of a command.

    Raises:
        UserError: it failed.
    """
    answer = there.run(command)
    if answer.returncode:
        require_answer(there, answer)
        last = last_line(answer.stderr, answer.stdout)
        raise UserError(f"{command[0]}: {last}", f"try it there yourself: {shlex.join(command)}")
    return answer.stdout


def _partitions(profile: Slurm, there: Transport) -> Checks:
    """Compare the partitions of the profile with those that sinfo lists."""
    lines = _output(there, "sinfo", "--noheader", "--format=%P|%a|%l|%D|%G|%T").splitlines()
    rows = [[cell.strip() for cell in line.split("|")] for line in lines if line.count("|") == 5]
    if not rows:
        yield SCHEDULER.fail("partitions", "sinfo lists none", "ask the site's help desk which ones are yours")
        return
    names = list(dict.fromkeys(row[0].rstrip("*") for row in rows))
    default = next((row[0].rstrip("*") for row in rows if row[0].endswith("*")), None)
    chosen = dict.fromkeys([profile.batch_partition, profile.run_partition, profile.build_partition, profile.partition])
    for name in [name for name in chosen if name] or [default]:
        if name is None:
            yield SCHEDULER.fail("partition", "the profile names none, and the site has no default", "set partition")
        elif unknown := [one for one in name.split(",") if one not in names]:
            near = did_you_mean(unknown[0], names, f"there are: {', '.join(names)}")
            yield SCHEDULER.fail("partition", f"partition '{unknown[0]}' does not exist", near)
        else:
            own = [row for row in rows if row[0].rstrip("*") in name.split(",")]
            build = name == profile.build_partition and name != profile.partition
            yield from _fits(profile, name, own, nodes=1 if build else profile.nodes, gpus=not build)
            if resources := describe_partition(there, name):
                yield SCHEDULER.ok(f"resources of {name}", resources)


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
    most = max((_count_gpus(gres) for *_, gres in counts), default=0)
    if gpus and profile.gpus_per_node > most and profile.gpus_option != "none":
        what = f"its nodes have {most or 'no'} GPUs, and the profile asks for {profile.gpus_per_node} on each"
        yield SCHEDULER.fail(there, what, "correct gpus_per_node, or take another partition")
    if all(_is_longer(profile.time, row[2]) for row in rows):
        what = f"jobs end after {rows[0][2]}, and the profile asks for {profile.time}"
        yield SCHEDULER.fail(there, what, f'set time = "{rows[0][2]}": what is not finished is queued again')


def _count_gpus(gres: str) -> int:
    """GPUs per node from a gres string: `gpu:8`, `gpu:h100:8(S:0-1)` or `gpu:a100:4,gpu:v100:2`."""
    return sum(int(count) for count in re.findall(r"gpu(?::[^:,()]+)?:(\d+)", gres))


def _settings(profile: Slurm, there: Transport) -> Checks:
    """Check how Slurm ends and requeues jobs, which our jobs rely on."""
    pairs = (line.partition("=") for line in _output(there, "scontrol", "show", "config").splitlines())
    values = {name.strip(): value.strip() for name, _, value in pairs if name.strip()}
    yield SCHEDULER.ok("Slurm", values.get("SLURM_VERSION", "of an unknown version"))
    wait = re.match(r"\d+", values.get("KillWait", ""))
    if wait and int(wait[0]) < LONG_ENOUGH:
        what = f"a cancelled job is killed {wait[0]} s after the signal to end, which is short for a checkpoint"
        yield SCHEDULER.warn("KillWait", what, "save more often (checkpoint.save_interval) before cancelling jobs")
    if values.get("PreemptMode", "OFF") not in ("OFF", "") and profile.requeue:
        if "send_user_signal" in values.get("SlurmctldParameters", "") + values.get("PreemptParameters", ""):
            yield SCHEDULER.ok("PreemptMode", f"{values['PreemptMode']}, with a signal to the job before")
        else:
            what = f"{values['PreemptMode']}, without send_user_signal: a preempted job gets no signal before"
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
    user = _output(there, "id", "-un").strip()
    if not NAME.fullmatch(user):
        raise UserError(f"id -un says {user[:40]!r}", "try it there yourself: it should print a user's name alone")
    form = "format=Account,Partition,QOS,DefaultQOS"
    answer = there.run(["sacctmgr", "-nP", "show", "assoc", "where", f"user={user}", form])
    rows = [line.split("|") for line in answer.stdout.splitlines() if line.count("|") == 3]
    if answer.returncode or not rows:
        why = last_line(answer.stderr, f"no association of {user} is shown")
        yield SCHEDULER.skip("limits", f"sacctmgr tells nothing: {why}")
        return
    accounts = list(dict.fromkeys(row[0] for row in rows))
    mine = [row for row in rows if not profile.account or row[0].lower() == profile.account.lower()]
    if not mine:
        near = did_you_mean(profile.account or "", accounts, f"yours are: {', '.join(accounts)}")
        yield SCHEDULER.fail("account", f"{user} has no account '{profile.account}'", near)
    else:
        yield SCHEDULER.ok("account", profile.account or f"the default one of: {', '.join(accounts)}")
    allowed = {name for row in mine for name in row[2].split(",") if name}
    if profile.qos and allowed and profile.qos not in allowed:
        near = did_you_mean(profile.qos, allowed, f"there are: {', '.join(sorted(allowed))}")
        yield SCHEDULER.fail("qos", f"the account may not use '{profile.qos}'", near)
        return
    shown = _output(there, "sacctmgr", "-nP", "show", "qos", f"format={','.join(QOS_KEYS)}").splitlines()
    every = {line.split("|")[0]: dict(zip(QOS_KEYS, line.split("|"), strict=False)) for line in shown}
    default = next((row[3] for row in mine if row[3]), "")
    partition = [profile.partition] if profile.partition else []
    of_partition = re.search(r"\bQoS=(\S+)", there.run(["scontrol", "show", "partition", *partition]).stdout)
    for name in dict.fromkeys([profile.qos or default, of_partition[1] if of_partition else ""]):
        if NAME.fullmatch(name) and name in every:
            yield _qos(profile, name, every[name], there)


def _qos(profile: Slurm, name: str, limits: dict[str, str], there: Transport) -> Check:
    queue, wrong = f"qos {name}", []
    if _is_longer(profile.time, limits.get("MaxWall") or ""):
        wrong.append(f"jobs end after {limits['MaxWall']}, and the profile asks for {profile.time}")
    wanted = {"node": profile.nodes, "gres/gpu": profile.nodes * profile.gpus_per_node}
    for key in ("MaxTRES", "MaxTRESPU", "GrpTRES"):
        for thing, most in re.findall(r"([\w/]+)=(\d+)", limits.get(key) or ""):
            if wanted.get(thing, 0) > int(most):
                wrong.append(f"{key} is {thing}={most}, and the profile asks for {wanted[thing]}")
    if wrong:
        return SCHEDULER.fail(queue, "; ".join(wrong), "ask for less, or for another qos")
    running = there.run(["squeue", "--me", "-h", f"--qos={name}", "-o", "%i"]).stdout.split()
    jobs = []
    for key, what, then in (("MaxJobsPU", "runs", "waits"), ("MaxSubmitPU", "takes", "is refused")):
        if not (limits.get(key) or "").isdecimal():
            continue
        most = int(limits[key])
        jobs.append(f"{what} {most} job{'s' if most > 1 else ''} of a user")
        if len(running) >= most:
            have = f"you have {len(running)} there: {', '.join(running[:5])}; the next one {then}"
            return SCHEDULER.warn(queue, f"{jobs[-1]}, and {have}", "let it end, or cancel it with scancel")
    return SCHEDULER.ok(queue, " and ".join(jobs) or "no limit of jobs")


def _container(profile: Slurm, there: Transport) -> Checks:
    runtime = profile.container_runtime or ("pyxis" if profile.container_image else None)
    if runtime != "pyxis":
        return
    if "--container-image" in _output(there, "srun", "--help"):
        yield SCHEDULER.ok("pyxis", "srun takes --container-image")
    else:
        remedy = 'set container_runtime = "apptainer" or "none", or ask the site for pyxis'
        yield SCHEDULER.fail("pyxis", "srun has no --container-image", remedy)


def _test_only(profile: Slurm, there: Transport) -> Checks:
    """Let Slurm test a job of this size, without queueing it."""
    fills = profile.gpus_per_node >= WHOLE_FROM
    job = Job(JOB, (), nodes=profile.nodes, gpus_per_node=profile.gpus_per_node, whole_nodes=fills)
    start = test_only(there, render(job, profile, PurePosixPath("/tmp")))
    yield SCHEDULER.ok(LIKE_THIS, re.sub(r"^Job \d+ to start", "would start", start))


def probe_nodes(
    profile: Slurm, there: Transport, python: str, folder: PurePosixPath, question: Mapping[str, Any], wait: int
) -> tuple[list[Facts], Check]:
    """Probe the nodes; returns the facts of each, and a check of the probing itself.

    Args:
        python: see `python_of`.
        folder: on the shared file system; a temporary folder for the shared-file test is created in it.
        wait: seconds to wait for free nodes.
    """
    canary = folder / f".doctor-{secrets.token_hex(4)}"
    made = there.run(["mkdir", "-p", "--", str(canary)])
    if made.returncode:
        return [], NODES.fail("shared folder", made.stderr.strip() or f"{canary} could not be made", NAME_OWN)
    try:
        command = _command(profile, python, {**question, "canary": str(canary), "nodes": profile.nodes}, wait)
        answer = there.run(command, patience=wait + 60 * MINUTES + 60)
        listed = there.run(["ls", "-1", "--", str(canary)]).stdout.split()
    except NoAnswer as error:
        return [], NODES.fail("srun", error.message, "look at the queue: squeue --me")
    finally:
        there.run(["rm", "-rf", "--", str(canary)])
    facts = packages.facts_in(answer.stdout)
    complaint = last_line(answer.stderr)
    if not facts and "Unable to allocate" in answer.stderr:
        what = f"not free within {wait} s, so not looked at ({complaint})"
        return [], NODES.warn("srun", what, "ask again later, or with a longer --wait")
    if len(facts) < profile.nodes:
        what = f"{len(facts)} of {profile.nodes} answered: {complaint}"
        return facts, NODES.fail("srun", what, "the profile's python must run on the nodes (python, setup_lines)")
    if len([name for name in listed if name.endswith(".txt")]) < profile.nodes:
        what = f"{there.place} does not see in {canary.parent} what the nodes have written there"
        return facts, NODES.fail("shared folder", what, NAME_SHARED)
    return facts, NODES.ok("srun", f"{len(facts)} of {profile.nodes} answered")


def python_of(profile: Slurm, here: str) -> str:
    """The interpreter that runs the probe: that of the jobs, or the node's own if jobs run in a container."""
    inside = profile.container_image and profile.container_runtime != "none"
    return OF_THE_NODE if inside else profile.python or here


def _command(profile: Slurm, python: str, question: Mapping[str, Any], wait: int) -> list[str]:
    """The srun command. As in jobs, the profile's setup lines and variables come first on each node."""
    profile = _in_batch_partition(profile)
    per_node = {"tasks": 1, "gpus": profile.gpus_per_node}
    values = site_options(profile, JOB, profile.nodes, **per_node, cpus=profile.cpus_per_task)
    values |= {"time": MINUTES, "immediate": wait, "export": PASSED_ON}
    options = [f"--{name}={value}" for name, value in values.items() if value is not None]
    options += ["--exclusive"] if profile.exclusive else []
    options += [option for option in profile.extra_directives if option.startswith("--")]
    lines = [f"export {name}={shlex.quote(value)}" for name, value in profile.env_vars.items()]
    script = "\n".join([*lines, *profile.setup_lines, 'exec "$@"'])
    return ["srun", *options, "bash", "-c", script, "doctor", python, "-c", packages.SOURCE, json.dumps(question)]


def check_nodes(
    profile: Slurm,
    every: Iterable[Facts],
    wanted: "list[Requirement] | None",
    engine: str | None,
    room_at: tuple[str, int],
) -> Iterator[Check]:
    """Check the facts of all nodes; results that several nodes share are shown once.

    Args:
        wanted: pinned versions; None if the packages come from a container.
        room_at: the folder that jobs write to, and the free bytes required there.
    """
    facts = sorted(every, key=lambda each: each["canary"]["rank"])
    checks: dict[str, list[Check]] = {}
    for each in facts:
        found = [_gpus(profile, each), *_canary(profile, each), *_folders(profile, each, *room_at)]
        if wanted is not None:
            found += packages.check_packages(NODES, each, wanted, engine)
        checks[each["host"]] = found
    yield from on_all(checks)
    slowest = max((each["canary"].get("wrote", 0.0) for each in facts), default=0.0)
    if slowest > SLOW_WRITE:
        what = f"a file of a few bytes took up to {slowest:.1f} s to write"
        yield NODES.warn("shared folder's speed", what, "checkpoints will be slow; ask the site for a faster folder")
    if wanted is None:
        yield NODES.skip("packages", "are those of the container, which is not started for this")


def _gpus(profile: Slurm, facts: Facts) -> Check:
    gpus, wanted = facts["gpus"], profile.gpus_per_node
    each = gpus.get("each", [])
    shown = "; ".join(f"{each.count(kind)} x {kind}" for kind in dict.fromkeys(each)) or gpus.get("error", "none")
    if len(each) < wanted:
        remedy = "correct gpus_per_node, or report the node to the site"
        return NODES.fail("GPUs", f"{wanted} wanted, found: {shown}", remedy)
    return NODES.ok("GPUs", shown) if each else NODES.skip("GPUs", "none, and the profile asks for none")


def _canary(profile: Slurm, facts: Facts) -> Iterator[Check]:
    canary = facts["canary"]
    if "error" in canary:
        yield NODES.fail("shared folder", canary["error"], NAME_OWN)
        return
    if canary["seen"] < profile.nodes:
        what = f"files of {canary['seen']} of {profile.nodes} nodes are seen within a minute"
        yield NODES.fail("shared folder", what, NAME_SHARED)
    else:
        yield NODES.ok("shared folder", f"files of all {profile.nodes} nodes are seen")
    if abs(canary["ahead"]) > CLOCKS:
        what = f"{abs(canary['ahead']):.0f} s {'ahead of' if canary['ahead'] > 0 else 'behind'} the file system's"
        yield NODES.warn("clock", what, "report it to the site: tokens and file times go wrong")
    for name, answer in canary["names"].items():
        if answer["seconds"] > SLOW_NAME:
            what = f"{name} and its address take {answer['seconds']:.0f} s to look up, each time a process joins"
            yield NODES.warn("names", what, REPAIR_NAMES)
        elif "error" in answer:
            what = f"{name} cannot be looked up both ways: {answer['error']}"
            yield NODES.warn("names", what, f"use addresses, or {REPAIR_NAMES}")
        else:
            yield NODES.ok("names", f"{name} is {answer['address']}, and back")


def _folders(profile: Slurm, facts: Facts, home: str, wanted_bytes: int) -> Iterator[Check]:
    for path, folder in facts["folders"].items():
        if "error" in folder or not folder["writable"]:
            what = f"{path}: {folder.get('error') or folder['at'] + ' cannot be written'}"
            yield NODES.fail("folder", what, "name a folder that is yours, on the shared file system")
        elif path == home and wanted_bytes:
            yield check_room(NODES, f"{size(folder['free'])} free for {path}", folder["free"], wanted_bytes)
        elif path == _cache(profile) and profile.nodes > 1 and not is_shared(folder["kind"]):
            what = f"HF_HOME {path} lies on {folder['kind']}, which each node may have for itself"
            remedy = "set env_vars.HF_HOME to a shared folder: converted weights must be seen by all nodes"
            yield NODES.warn("cache", what, remedy)
    if facts["nofile"] < FILES_WANTED:
        yield NODES.warn("open files", f"at most {facts['nofile']}", 'setup_lines = ["ulimit -n 65536"]')


def _cache(profile: Slurm) -> str:
    """The jobs' download cache."""
    return profile.env_vars.get("HF_HOME", "~/.cache/huggingface")


def folders_of(profile: Slurm, home: str) -> list[str]:
    """Folders to check on the nodes."""
    return list(dict.fromkeys(path for path in (home, profile.remote_job_dir, _cache(profile)) if path))


def describe_nodes(profile: Slurm, every: Iterable[Facts], home: str) -> dict[str, Any]:
    """The minimum over all nodes, in the format of `--machine`."""
    facts = min(every, key=lambda each: (len(each["gpus"].get("each", [])), each["memory"]))
    found: dict[str, Any] = {"memory_gb": facts["memory"] / 1e9}
    if each := facts["gpus"].get("each", [])[: profile.gpus_per_node]:
        name, _, mib = each[0].rpartition(", ")
        found["gpus"] = {"name": name, "count": len(each), "memory_gb": float(mib.split()[0]) * 2**20 / 1e9}
    if "free" in (folder := facts["folders"].get(home, {})):
        found["free_disk_gb"] = folder["free"] / 1e9
    if not profile.container_image:  # a container has its own Python and packages
        found |= {"python": ".".join(facts["python"].split(".")[:2]), "packages": facts["packages"]}
    return found
