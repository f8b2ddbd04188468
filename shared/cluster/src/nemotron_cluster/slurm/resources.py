"""CPUs, memory and whole nodes: what a job requests from Slurm if the profile does not say.

asked = asked_of(job, profile)
asked.exclusive, asked.cpus_per_task, asked.mem     True, None, "0": whole nodes
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nemotron_cluster.job import Job
from nemotron_cluster.profiles.schema import Slurm
from nemotron_cluster.slurm import ray_sub

CPUS_OF_A_PROCESS = 8
"""CPUs of a GPU process on a shared node, or of a process with an unlimited number of threads."""
WHOLE_FROM = 4
"""A single-node job that uses all GPUs of a node counts as filling it if the node has at least this many."""


@dataclass(frozen=True)
class Asked:
    """Resource options of the script. None: omitted, so that the partition's default applies."""

    exclusive: bool
    cpus_per_task: int | None
    mem: str | None
    why: str


def asked_of(job: Job, profile: Slurm) -> Asked:
    """The profile's settings take precedence; its `extra_directives` replace the options that they name."""
    exclusive, why = _exclusive(job, profile)
    cpus = _cpus_per_task(job, profile, exclusive=exclusive)
    mem = profile.mem or (
        "0" if exclusive and not _is_said(profile, "--mem", "--mem-per-cpu", "--mem-per-gpu") else None
    )
    return Asked(exclusive, cpus, mem, why)


def _exclusive(job: Job, profile: Slurm) -> tuple[bool, str]:
    if profile.exclusive is not None:
        return profile.exclusive, "the profile says so"
    if _is_said(profile, "--exclusive", "--oversubscribe", "-s"):
        return False, "extra_directives decide"
    if ray_sub.is_used(job, profile):
        return True, "ray.sub asks for them"
    if not job.whole_nodes:
        return False, "the job uses a part of its node"
    if job.gpus_per_node:
        return True, "the job uses all GPUs of its nodes"
    if profile.cpus_per_task or _is_said(profile, "--cpus-per-task", "-c"):
        return False, "the profile says how many CPUs"
    return True, "the job uses all CPUs that it finds"


def _cpus_per_task(job: Job, profile: Slurm, *, exclusive: bool) -> int | None:
    """CPUs per task. With `ntasks_per_node`, `cpus_per_task` is per process, but torchrun's processes share a task."""
    if profile.cpus_per_task is not None:
        several = job.start != "srun" and profile.ntasks_per_node is not None
        return profile.cpus_per_task * (job.processes_per_node if several else 1)
    if exclusive or job.cpus_per_node is None or _is_said(profile, "--cpus-per-task", "--cpus-per-gpu", "-c"):
        return None
    return -(-job.cpus_per_node // (job.processes_per_node if job.start == "srun" else 1))


def _is_said(profile: Slurm, *names: str) -> bool:
    """Whether the profile's own directives contain one of these options."""
    return any(option.partition("=")[0].split()[0] in names for option in profile.extra_directives)


def facts(job: Job, profile: Slurm) -> Iterator[tuple[str, Any]]:
    """The requested resources, for people."""
    asked = asked_of(job, profile)
    tasks = job.processes_per_node if job.start == "srun" else 1
    whole = "all" if asked.exclusive else "the partition's default"
    yield "CPUs per node", asked.cpus_per_task * tasks if asked.cpus_per_task else whole
    yield "memory per node", "all" if asked.mem == "0" else asked.mem or "the partition's default"
    yield "whole nodes", f"{'yes' if asked.exclusive else 'no'} ({asked.why})"
