"""Map profiles and jobs to arguments of NeMo-Run's executors, and states of its services to ours."""

from collections.abc import Callable
from typing import Any

from nemotron_cluster.backends import Condition
from nemotron_cluster.job import Job
from nemotron_cluster.profiles.schema import DGXCloud, Docker, Kubeflow, Lepton, Profile

NODES: dict[str, Callable[[int], tuple[str, ...]]] = {
    # Run:ai's training operator passes the rest to torchrun in environment variables.
    "dgxcloud": lambda nodes: (f"--nnodes={nodes}",),
    "lepton": lambda nodes: (
        f"--nnodes={nodes}",
        '--node-rank="$NODE_RANK"',
        '--master-addr="$MASTER_ADDR"',
        '--master-port="$MASTER_PORT"',
    ),
    "kubeflow": lambda nodes: (
        f"--nnodes={nodes}",
        '--node-rank="$PET_NODE_RANK"',
        '--master-addr="$PET_MASTER_ADDR"',
        '--master-port="$PET_MASTER_PORT"',
    ),
}
"""torchrun options for the node rank, by the variables that each service sets."""

STATES: dict[str, Condition] = {
    # Docker
    "created": "waiting", "running": "running", "paused": "running", "restarting": "running", "removing": "running",
    # DGX Cloud, Lepton, Kubeflow
    "Creating": "waiting", "Initializing": "waiting", "Resuming": "waiting", "Pending": "waiting",
    "Starting": "waiting", "Queueing": "waiting", "Awaiting": "waiting", "PendingRetry": "waiting",
    "Restarting": "waiting", "Created": "waiting",
    "Running": "running", "Updating": "running", "Degraded": "running", "Stopping": "running",
    "Terminating": "running", "Deleting": "running",
    "Completed": "done", "Succeeded": "done", "Failed": "failed", "Stopped": "cancelled", "Deleted": "cancelled",
}  # fmt: skip


def settings_of(profile: Profile, job: Job) -> dict[str, Any]:
    """Arguments of NeMo-Run's executor, without secrets or variables, which the job's script sets."""
    if isinstance(profile, Docker):
        return {
            "container_image": job.container,
            "ntasks_per_node": job.processes_per_node,
            "num_gpus": job.gpus_per_node or None,
            "runtime": profile.runtime or ("nvidia" if job.gpus_per_node else None),
            "ipc_mode": profile.ipc_mode,
            "shm_size": profile.shm_size,
        }
    size = {"nodes": job.nodes, "gpus_per_node": job.gpus_per_node, "nprocs_per_node": job.processes_per_node}
    if isinstance(profile, DGXCloud):
        return size | {
            "base_url": profile.base_url,
            "kube_apiserver_url": profile.kube_apiserver_url,
            "client_id": profile.client_id,
            "project_name": profile.project_name,
            "container_image": job.container,
            "pvc_nemo_run_dir": profile.pvc_nemo_run_dir,
            "pvcs": profile.pvcs,
            "distributed_framework": profile.distributed_framework,
            "custom_spec": profile.custom_spec,
        }
    if isinstance(profile, Lepton):
        return size | {
            "container_image": job.container,
            "nemo_run_dir": profile.nemo_run_dir,
            "resource_shape": profile.resource_shape,
            "node_group": profile.node_group,
            "node_reservation": profile.node_reservation or "",
            "shared_memory_size": profile.shared_memory_size,
            "mounts": profile.mounts,
            "image_pull_secrets": profile.image_pull_secrets,
            "pre_launch_commands": profile.pre_launch_commands,
            "secret_vars": profile.secret_refs,
        }
    assert isinstance(profile, Kubeflow)
    return {
        "num_nodes": job.nodes,
        "gpus_per_node": job.gpus_per_node or None,
        "nprocs_per_node": job.processes_per_node,
        "image": job.container,
        "namespace": profile.namespace,
        "workdir_pvc": profile.workdir_pvc,
        "workdir_pvc_path": profile.workdir_pvc_path,
        "train_job_basename": job.name,
        "image_pull_secrets": profile.image_pull_secrets,
        "labels": profile.labels,
        "annotations": profile.annotations,
        "tolerations": profile.tolerations,
        "volumes": profile.volumes,
        "volume_mounts": profile.volume_mounts,
        "cpu_requests": profile.cpu_requests,
        "memory_requests": profile.memory_requests,
        "env_list": [
            {"name": name, "valueFrom": {"secretKeyRef": dict(zip(("name", "key"), place.split("/"), strict=True))}}
            for name, place in profile.secret_refs.items()
        ],
    }
