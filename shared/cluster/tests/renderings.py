"""What each backend makes of one job, as in the folder golden.

NEMOTRON_ENGINES=... python shared/cluster/tests/renderings.py     writes it anew; needs NeMo-Run's environment
"""

import getpass
import tempfile
from pathlib import Path

from jobs import job_of, profile_of

from nemotron_cluster.backends import backend_of
from nemotron_cluster.job import jobs_folder

GOLDEN = Path(__file__).parent / "golden"
REQUEST = "# NeMo-Run ("
"""Begins what only NeMo-Run can tell."""
IMAGE = "example.org/nemo:26.04"
NAMED = {"HF_TOKEN": "hub/token"}
CLOUD = {"home": "/mnt/store", "nodes": 2, "setup_lines": ["module load x"]}

PROFILES = {
    "local": {"setup_lines": ["module load cuda"]},
    "docker": {"mounts": ["/data:/data:ro"], "ipc_mode": "host", "shm_size": "16g"},
    "skypilot": CLOUD | {"cloud": "aws", "accelerators": "H100:8", "use_spot": True, "file_mounts": {"/d": "s3://b"}},
    "dgxcloud": CLOUD
    | {
        "base_url": "https://dgx.example.org/api/v1",
        "kube_apiserver_url": "https://kube.example.org",
        "client_id": "me",
        "project_name": "p",
        "pvc_nemo_run_dir": "/mnt/jobs",
        "pvcs": [{"claimName": "c", "path": "/mnt"}],
    },
    "lepton": CLOUD
    | {
        "nemo_run_dir": "/mnt/jobs",
        "resource_shape": "gpu.8xh100",
        "node_group": "g",
        "node_reservation": "r",
        "mounts": [{"path": "/", "mount_path": "/mnt", "from": "node-nfs:v"}],
        "image_pull_secrets": ["registry"],
        "secret_refs": {"HF_TOKEN": "hub"},
    },
    "kubeflow": CLOUD | {"workdir_pvc": "c", "secret_refs": NAMED, "tolerations": [{"operator": "Exists"}]},
}


def rendered(executor: str) -> str:
    """One step on one machine, or on two nodes of a cloud; paths of this machine by their names."""
    one = executor in ("local", "docker")
    job = job_of(
        python="python3",
        start="torchrun",
        nodes=1 if one else 2,
        processes_per_node=8,
        gpus_per_node=8,
        container=None if executor == "local" else IMAGE,
        environment={"NOTE": "it's here"},
        secrets=() if executor == "dgxcloud" else ("HF_TOKEN",),
        force=True,
        workdir="/home/me/my work" if executor == "local" else None,
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "super3-sft"
        folder.mkdir()
        text = backend_of(profile_of(executor, **PROFILES[executor])).render(job, folder)
        text = text.replace(scratch, "JOBS").replace(str(jobs_folder().parent), "STORE")
        return text.replace(f"/{getpass.getuser()}/", "/USER/")


if __name__ == "__main__":
    for executor in PROFILES:
        (GOLDEN / f"{executor}.txt").write_text(rendered(executor))
