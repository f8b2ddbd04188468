"""What each backend makes of a job, as in the folder golden; and what it refuses to send."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml
from jobs import PLANTED, folder_of, job_of, profile_of, write_programs
from renderings import GOLDEN, IMAGE, PROFILES, REQUEST, rendered

from nemotron_cluster.backends import BACKENDS, backend_of
from nemotron_cluster.backends.nemo_run import REQUEST_FILE
from nemotron_cluster.job import Record
from nemotron_cluster.profiles import PROFILES as EXECUTORS
from nemotron_shared.system.errors import UserError

FIELDS = {"name", "num_nodes", "resources", "workdir", "file_mounts", "secrets", "envs", "setup", "run"}
RESOURCES = {"cloud", "region", "instance_type", "accelerators", "use_spot", "disk_size", "image_id"}
"""What SkyPilot's reference of its YAML documents, as far as we use it."""


@pytest.fixture(autouse=True)
def without_nemo_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMOTRON_ENGINES", str(tmp_path / "engines"))
    for name in ("HF_TOKEN", "DGX_CLIENT_SECRET"):
        monkeypatch.setenv(name, PLANTED)


def test_every_executor_has_a_backend() -> None:
    assert BACKENDS.keys() == EXECUTORS.keys()
    assert PROFILES.keys() == BACKENDS.keys() - {"slurm"}


@pytest.mark.parametrize("executor", PROFILES)
def test_a_job_is_rendered_as_written_down(executor: str) -> None:
    text, golden = rendered(executor), (GOLDEN / f"{executor}.txt").read_text()
    assert text.partition(REQUEST)[0] == golden.partition(REQUEST)[0]
    assert (REQUEST in golden) == ("nemotron engine install nemo_run" in text)
    assert PLANTED not in golden
    script = text[text.index("#!/usr/bin/env bash") :].partition(REQUEST)[0]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_a_task_for_skypilot_has_fields_that_skypilot_documents() -> None:
    text = (GOLDEN / "skypilot.txt").read_text()
    task = yaml.safe_load(text.partition("\n# job.sh")[0])
    assert set(task) <= FIELDS and set(task["resources"]) <= RESOURCES
    assert task["secrets"] == {"HF_TOKEN": None}


CLOUDS = ("dgxcloud", "lepton", "kubeflow")
REFUSED = [
    *[(name, {"home": None}, "home: the artifacts of this machine") for name in (*CLOUDS, "skypilot")],
    *[(name, {"secret_refs": {}}, "HF_TOKEN is set here, and no value of a secret is sent") for name in CLOUDS],
    ("kubeflow", {"secret_refs": {"HF_TOKEN": "hub"}}, "must name a secret and its key"),
    ("kubeflow", {"workdir_pvc": None}, "workdir_pvc: the job's folder needs a volume"),
    ("lepton", {"custom_spec": {"a": 1}}, "custom_spec: NeMo-Run 0.11.1 leaves it out"),
    *[(name, {}, "needs NeMo-Run\n.*nemotron engine install nemo_run") for name in ("docker", "lepton", "kubeflow")],
]


@pytest.mark.parametrize(("executor", "keys", "message"), REFUSED)
def test_what_cannot_be_sent_is_refused(tmp_path: Path, executor: str, keys: dict[str, object], message: str) -> None:
    backend = backend_of(profile_of(executor, **PROFILES[executor] | keys))
    with pytest.raises(UserError, match=message):
        backend.submit(job_of(container=IMAGE, secrets=("HF_TOKEN",)), folder_of(tmp_path))


def test_an_executor_of_images_says_that_it_needs_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'docker' needs an image"):
        backend_of(profile_of("docker")).submit(job_of(), folder_of(tmp_path))


def test_a_docker_of_another_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ssh://other")
    with pytest.raises(UserError, match="DOCKER_HOST names another machine"):
        backend_of(profile_of("docker")).submit(job_of(container=IMAGE), folder_of(tmp_path))


def test_packages_that_do_not_fit_are_refused_for_lepton(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / "code" / "large.py").write_bytes(os.urandom(200_000))
    with pytest.raises(UserError, match="NeMo-Run carries 96 KiB to Lepton"):
        backend_of(profile_of("lepton", **PROFILES["lepton"])).submit(job_of(container=IMAGE), folder)


def test_what_nemo_run_is_told_is_kept_without_secrets_and_the_copy_for_a_cloud_has_none(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / "secrets").mkdir()
    (folder / "secrets" / "env").write_text(f"export HF_TOKEN={PLANTED}\n")
    backend = backend_of(profile_of("dgxcloud", **PROFILES["dgxcloud"]))
    with pytest.raises(UserError, match="needs NeMo-Run"):
        backend.submit(job_of(container=IMAGE), folder)
    assert PLANTED not in (folder / REQUEST_FILE).read_text()
    assert {path.name for path in (folder / "send").iterdir()} == {"job.sh", "config.yaml", "code.txz"}


FAKE_SKY = """#!/bin/sh
printf '%s\\n' "$*" >>{log}
echo "Job submitted, Job ID: 7"
"""


@pytest.mark.parametrize("cluster", ["mine", None])
def test_skypilot_s_command_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: str | None) -> None:
    """A script stands in for `sky`: what counts is what it is asked."""
    log = tmp_path / "log"
    write_programs(tmp_path / "bin", {"sky": FAKE_SKY.format(log=log)})
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    backend, folder = backend_of(profile_of("skypilot", home="/d", cluster_name=cluster)), folder_of(tmp_path)
    identity = backend.submit(job_of(secrets=("HF_TOKEN",)), folder)
    record = Record("n", "p", "skypilot", str(folder), "~", "h", "t", "x", identity)
    backend.cancel(record)
    assert backend.state(record).state == "unknown"
    launched, cancelled = log.read_text().splitlines()
    if cluster:
        assert (identity, cancelled) == ("mine:7", "cancel --yes mine 7")
        assert launched.startswith("launch --cluster mine --detach-run --yes --secret HF_TOKEN /")
    else:
        assert (identity, cancelled) == (folder.name, f"jobs cancel --yes --name {folder.name}")
        assert launched.startswith(f"jobs launch --name {folder.name} --detach-run")
    assert not [path for path in folder.rglob("*") if path.is_file() and PLANTED in path.read_text()]
