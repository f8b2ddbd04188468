"""Check the nodes: run the probe on as many nodes as the profile uses, with one short srun.

Every node writes a file into the shared folder, and waits for the files of all others.
"""

import json
import secrets
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from nemotron_cluster.doctor import packages
from nemotron_cluster.doctor.machine import room
from nemotron_cluster.doctor.packages import Facts, is_shared
from nemotron_cluster.doctor.report import Check, Group, on_all
from nemotron_cluster.doctor.scheduler import asked
from nemotron_cluster.profiles.schema import Slurm
from nemotron_cluster.transport import NoAnswer, Transport
from nemotron_shared.runtime.disk import size

if TYPE_CHECKING:
    from packaging.requirements import Requirement

NODES = Group("nodes")
MINUTES = 10
SLOW_NAME = 5.0
"""Seconds. A lookup that waits for an unresponsive name server takes 25."""
SLOW_WRITE = 2.0
CLOCKS = 5.0
OF_THE_NODE = "python3"
PASSED_ON = "HOME,PATH,USER,LANG,LD_LIBRARY_PATH"


def ask(
    profile: Slurm, there: Transport, python: str, folder: PurePosixPath, question: Mapping[str, Any], wait: int
) -> tuple[list[Facts], list[Check]]:
    """Probe the nodes; returns the facts of each, and checks about the probing itself.

    Args:
        python: see `python_of`.
        folder: on the shared file system; a temporary folder for the shared-file test is created in it.
        wait: seconds to wait for free nodes.
    """
    canary = folder / f".doctor-{secrets.token_hex(4)}"
    made = there.run(["mkdir", "-p", "--", str(canary)])
    if made.returncode:
        remedy = "name a folder that is yours and that all nodes see (remote_job_dir, or home)"
        return [], [NODES.fail("shared folder", made.stderr.strip() or f"{canary} could not be made", remedy)]
    try:
        command = _command(profile, python, {**question, "canary": str(canary), "nodes": profile.nodes}, wait)
        answer = there.run(command, patience=wait + 60 * MINUTES + 60)
        listed = there.run(["ls", "-1", "--", str(canary)]).stdout.split()
    except NoAnswer as error:
        return [], [NODES.fail("srun", error.message, "look at the queue: squeue --me")]
    finally:
        there.run(["rm", "-rf", "--", str(canary)])
    facts = packages.facts_in(answer.stdout)
    complaint = (answer.stderr.strip() or "no message").splitlines()[-1]
    if not facts and "Unable to allocate" in answer.stderr:
        what = f"not free within {wait} s, so not looked at ({complaint})"
        return [], [NODES.warn("srun", what, "ask again later, or with a longer --wait")]
    if len(facts) < profile.nodes:
        what = f"{len(facts)} of {profile.nodes} answered: {complaint}"
        remedy = "the profile's python must run on the nodes (python, setup_lines)"
        return facts, [NODES.fail("srun", what, remedy)]
    if len([name for name in listed if name.endswith(".txt")]) < profile.nodes:
        what = f"{there.place} does not see in {canary.parent} what the nodes have written there"
        return facts, [NODES.fail("shared folder", what, "name a folder on the cluster's shared file system")]
    return facts, [NODES.ok("srun", f"{len(facts)} of {profile.nodes} answered")]


def python_of(profile: Slurm, here: str) -> str:
    """The interpreter that runs the probe: that of the jobs, or the node's own if jobs run in a container."""
    inside = profile.container_image and profile.container_runtime != "none"
    return OF_THE_NODE if inside else profile.python or here


def _command(profile: Slurm, python: str, question: Mapping[str, Any], wait: int) -> list[str]:
    """The srun command. As in jobs, the profile's setup lines and variables come first on each node."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in profile.env_vars.items()]
    script = "\n".join([*lines, *profile.setup_lines, 'exec "$@"'])
    limits = [f"--time={MINUTES}", "--ntasks-per-node=1", f"--immediate={wait}", "--job-name=nemotron-doctor"]
    more = [option for option in profile.extra_directives if option.startswith("--")]
    words = ["bash", "-c", script, "doctor", python, "-c", packages.SOURCE, json.dumps(question)]
    return ["srun", *asked(profile), *more, *limits, f"--export={PASSED_ON}", *words]


def judge(
    profile: Slurm,
    every: Iterable[Facts],
    wanted: "list[Requirement] | None",
    engine: str | None,
    room_at: tuple[str, int],
) -> Iterator[Check]:
    """Judge the facts; results that several nodes share are shown once.

    Args:
        wanted: pinned versions; None if the packages come from a container.
        room_at: the folder that jobs write to, and the free bytes required there.
    """
    facts = sorted(every, key=lambda each: each["canary"]["rank"])
    checks: dict[str, list[Check]] = {}
    for each in facts:
        found = [_gpus(profile, each), *_canary(profile, each), *_folders(profile, each, *room_at)]
        if wanted is not None:
            found += packages.judge(NODES, each, wanted, engine)
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
    said = "; ".join(f"{each.count(kind)} x {kind}" for kind in dict.fromkeys(each)) or gpus.get("error", "none")
    if len(each) >= wanted:
        return NODES.ok("GPUs", said) if each else NODES.skip("GPUs", "none, and the profile asks for none")
    return NODES.fail(
        "GPUs", f"{wanted} are asked for: {said}", "correct gpus_per_node, or report the node to the site"
    )


def _canary(profile: Slurm, facts: Facts) -> Iterator[Check]:
    canary = facts["canary"]
    if "error" in canary:
        remedy = "name a folder that is yours and that all nodes see (remote_job_dir, or home)"
        yield NODES.fail("shared folder", canary["error"], remedy)
        return
    if canary["seen"] < profile.nodes:
        what = f"files of {canary['seen']} of {profile.nodes} nodes are seen within a minute"
        yield NODES.fail("shared folder", what, "name a folder on the cluster's shared file system")
    else:
        yield NODES.ok("shared folder", f"files of all {profile.nodes} nodes are seen")
    if abs(canary["ahead"]) > CLOCKS:
        what = f"{abs(canary['ahead']):.0f} s {'ahead of' if canary['ahead'] > 0 else 'behind'} the file system's"
        yield NODES.warn("clock", what, "report it to the site: tokens and file times go wrong")
    for name, answer in canary["names"].items():
        if answer["seconds"] > SLOW_NAME:
            what = f"{name} and its address take {answer['seconds']:.0f} s to look up, each time a process joins"
            yield NODES.warn("names", what, "have the nodes' names put into /etc/hosts, or the name server repaired")
        elif "error" in answer:
            what = f"{name} cannot be looked up both ways: {answer['error']}"
            yield NODES.warn("names", what, "use addresses, or have /etc/hosts or the name server repaired")
        else:
            yield NODES.ok("names", f"{name} is {answer['address']}, and back")


def _folders(profile: Slurm, facts: Facts, home: str, wanted_bytes: int) -> Iterator[Check]:
    for path, folder in facts["folders"].items():
        if "error" in folder or not folder["writable"]:
            what = f"{path}: {folder.get('error') or folder['at'] + ' cannot be written'}"
            yield NODES.fail("folder", what, "name a folder that is yours, on the shared file system")
        elif path == home and wanted_bytes:
            yield room(NODES, f"{size(folder['free'])} free for {path}", folder["free"], wanted_bytes)
        elif path == cache_of(profile) and profile.nodes > 1 and not is_shared(folder["kind"]):
            what = f"HF_HOME {path} lies on {folder['kind']}, which each node may have for itself"
            remedy = "set env_vars.HF_HOME to a shared folder: converted weights must be seen by all nodes"
            yield NODES.warn("cache", what, remedy)
    if facts["nofile"] < 4096:
        yield NODES.warn("open files", f"at most {facts['nofile']}", 'setup_lines = ["ulimit -n 65536"]')


def cache_of(profile: Slurm) -> str:
    """The jobs' download cache."""
    return profile.env_vars.get("HF_HOME", "~/.cache/huggingface")


def folders(profile: Slurm, home: str) -> list[str]:
    """Folders to check on the nodes."""
    return list(dict.fromkeys(path for path in (home, profile.remote_job_dir, cache_of(profile)) if path))


def described(profile: Slurm, every: Iterable[Facts], home: str) -> dict[str, Any]:
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
