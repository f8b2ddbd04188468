"""Slurm as one that takes jobs: see `Backend`."""

from pathlib import Path, PurePosixPath

from nemotron_cluster.backends import State
from nemotron_cluster.folder import EXIT_CODE, LOG, SCRIPT, Record
from nemotron_cluster.job import Job
from nemotron_cluster.profiles.schema import Slurm
from nemotron_cluster.secrets import FOLDER as SECRETS
from nemotron_cluster.slurm import scheduler, submit
from nemotron_cluster.slurm.reasons import sentence
from nemotron_cluster.slurm.script import render
from nemotron_cluster.transport import Here, NoAnswer, transport_of
from nemotron_shared import atomic

CONDITIONS = {
    "PENDING": "waiting", "CONFIGURING": "waiting", "REQUEUED": "waiting", "REQUEUE_HOLD": "waiting",
    "REQUEUE_FED": "waiting", "SUSPENDED": "waiting", "STOPPED": "waiting", "RESV_DEL_HOLD": "waiting",
    "SPECIAL_EXIT": "waiting", "RUNNING": "running", "COMPLETING": "running", "STAGE_OUT": "running",
    "SIGNALING": "running", "RESIZING": "running", "COMPLETED": "done", "CANCELLED": "cancelled",
}  # fmt: skip
"""What Slurm calls a job, by what it means here; every other state is a failure."""
__all__ = ["SlurmBackend"]
