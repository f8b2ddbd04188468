"""A profile's `ray_sub`: use NeMo-RL's ray.sub instead of our own launcher for GPU steps on Ray in a container.

It is run by the job's script, not submitted by sbatch, because its directives contain placeholders (ACCOUNT,
PARTITION). Signals, requeueing, secrets and exit code therefore work as in every job. The script adopts two of its
directives: nodes are not shared with other jobs (--exclusive), and a job waits for earlier ones of its name
(--dependency=singleton).
"""

import shlex
from collections.abc import Iterable

from nemotron_cluster.job import Job
from nemotron_cluster.profiles.schema import Slurm


def is_used(job: Job, profile: Slurm) -> bool:
    """Whether ray.sub launches a job's Ray. It requires a container, and counts GPUs."""
    return bool(profile.ray_sub and job.start == "ray" and job.container and job.gpus_per_node)


def variables(profile: Slurm, image: str, mounts: Iterable[str]) -> str:
    """Variables that ray.sub reads and that ray_sub.sh does not set."""
    return "\n".join([
        f"ray_sub={shlex.quote(profile.ray_sub or '')}",
        f"export CONTAINER={shlex.quote(image)}",
        f"export MOUNTS={shlex.quote(','.join(mounts))}",
    ])  # fmt: skip
