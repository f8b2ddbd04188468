"""A profile's `ray_sub`: NeMo-RL's own ray.sub keeps Ray for steps that run on GPUs in a container, instead of ours.

It is not handed to sbatch itself, because its directives name ACCOUNT and PARTITION, but run by the job's script: so
signals, queueing again, secrets and exit code are those of every job. The script takes over two of its directives:
nodes are not shared with other jobs (--exclusive), and a job waits for earlier ones of its name
(--dependency=singleton).
"""

import shlex
from collections.abc import Iterable

from nemotron_cluster.job import Job
from nemotron_cluster.profiles.schema import Slurm


def is_used(job: Job, profile: Slurm) -> bool:
    """Whether ray.sub keeps a job's Ray. It asks for a container, and counts GPUs."""
    return bool(profile.ray_sub and job.start == "ray" and job.container and job.gpus_per_node)


def variables(profile: Slurm, image: str, mounts: Iterable[str]) -> str:
    """What ray.sub reads and ray_sub.sh does not know."""
    return "\n".join([
        f"ray_sub={shlex.quote(profile.ray_sub or '')}",
        f"export CONTAINER={shlex.quote(image)}",
        f"export MOUNTS={shlex.quote(','.join(mounts))}",
    ])  # fmt: skip
