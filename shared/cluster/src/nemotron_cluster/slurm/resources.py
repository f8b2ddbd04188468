"""CPUs, memory and whole nodes: what a job asks Slurm for where the profile leaves it open.

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
"""CPUs of a process with a GPU on a shared node, or of one that may have as many threads as it likes."""
WHOLE_FROM = 4
"""GPUs of a node from which a job of one node that takes all of them is taken to fill it."""


@dataclass(frozen=True)
class Asked:
    """What stands in the script; None: nothing, so that the partition's default holds."""

    exclusive: bool
    cpus_per_task: int | None
    mem: str | None
    why: str


def asked_of(job: Job, profile: Slurm) -> Asked:
    """The profile's own words first; its `extra_directives` replace what they name."""
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
    """CPUs of a task. Whoever sets `ntasks_per_node` means those of a process; torchrun's processes are one task."""
    if profile.cpus_per_task is not None:
        several = job.start != "srun" and profile.ntasks_per_node is not None
        return profile.cpus_per_task * (job.processes_per_node if several else 1)
    if exclusive or job.cpus_per_node is None or _is_said(profile, "--cpus-per-task", "--cpus-per-gpu", "-c"):
        return None
    return -(-job.cpus_per_node // (job.processes_per_node if job.start == "srun" else 1))


def _is_said(profile: Slurm, *names: str) -> bool:
    """Whether the profile's own directives name one of these options."""
    return any(option.partition("=")[0].split()[0] in names for option in profile.extra_directives)


def facts(job: Job, profile: Slurm) -> Iterator[tuple[str, Any]]:
    """What a job asks for, for people."""
    asked = asked_of(job, profile)
    tasks = job.processes_per_node if job.start == "srun" else 1
    whole = "all" if asked.exclusive else "the partition's default"
    yield "CPUs per node", asked.cpus_per_task * tasks if asked.cpus_per_task else whole
    yield "memory per node", "all" if asked.mem == "0" else asked.mem or "the partition's default"
    yield "whole nodes", f"{'yes' if asked.exclusive else 'no'} ({asked.why})"
