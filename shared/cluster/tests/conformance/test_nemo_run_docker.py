"""Jobs in real containers, through NeMo-Run and the docker socket of a podman of our own in a network of its own.

The image is empty: the container sees this machine's /usr and this Python, read-only. Needs root, podman, runc and the
plugins for its networks.
"""

import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs import PLANTED, ended, folder_of, job_of, profile_of, said, submitted, wait_for

from nemotron_cluster.backends import Backend, backend_of
from nemotron_cluster.job import EXIT_CODE
from nemotron_cluster.secrets import write_secrets

pytestmark = pytest.mark.nemo_run
IMAGE = "localhost/nothing:1"
CONTAINERS = """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
LINKS = ("bin", "sbin", "lib", "lib64")


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A docker socket of our own, by DOCKER_HOST."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("podman", "runc", "unshare"))):
        pytest.skip("needs root, podman and runc")
    folder = tmp_path_factory.mktemp("podman")
    (folder / "containers.conf").write_text(CONTAINERS)
    storage = f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
    (folder / "storage.conf").write_text(storage)
    settings = {
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }
    with tarfile.open(folder / "image.tar", "w") as image:
        for name in ("tmp", "etc", "proc", "sys", "dev", "usr"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            image.addfile(entry)
        for name in LINKS:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            image.addfile(entry)
    environment = os.environ | settings
    subprocess.run(["podman", "import", "-q", str(folder / "image.tar"), IMAGE], env=environment, check=True)
    socket = folder / "docker.sock"
    serve = f"ip link set lo up; exec podman system service --time=0 unix://{socket}"
    with (folder / "log").open("wb") as log:
        service = subprocess.Popen(
            ["unshare", "--net", "bash", "-c", serve], env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        wait_for(lambda: socket.exists() or service.poll() is not None)
        assert service.poll() is None, (folder / "log").read_text()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOCKER_HOST", f"unix://{socket}")
            yield
        subprocess.run(["podman", "rm", "--all", "--force", "--time=0"], env=environment, check=False)
    finally:
        os.killpg(service.pid, signal.SIGTERM)
        service.wait()
        subprocess.run(["umount", "-l", f"{folder}/graph/overlay"], check=False, stderr=subprocess.DEVNULL)


@pytest.fixture
def docker(podman: None) -> Backend:
    seen = {"/usr", str(Path(sys.prefix)), str(Path(sys.executable).resolve().parents[1])}
    mounts = [f"{path}:{path}:ro" for path in sorted(seen) if path == "/usr" or not path.startswith("/usr/")]
    return backend_of(profile_of("docker", container_image=IMAGE, mounts=mounts))


@pytest.mark.parametrize(("config", "state", "code"), [("exit 0", "done", 0), ("exit 5", "failed", 5)])
def test_a_job_in_a_container_says_how_it_ended(
    tmp_path: Path, docker: Backend, config: str, state: str, code: int
) -> None:
    record = submitted(docker, job_of(container=IMAGE, environment={"PLACE": "it's here"}), folder_of(tmp_path, config))
    end = ended(docker, record)
    assert (end.state, end.exit_code, end.source) == (state, code, EXIT_CODE), said(docker, record)
    assert f"step: {config} ['a b'] it's here no token" in said(docker, record)


def test_a_cancelled_container_saves(tmp_path: Path, docker: Backend) -> None:
    record = submitted(docker, job_of(container=IMAGE), folder_of(tmp_path, "sleep"))
    wait_for(lambda: "step:" in said(docker, record))
    assert docker.state(record).state == "running"
    docker.cancel(record)
    end = ended(docker, record)
    assert (end.state, end.exit_code) == ("cancelled", 130), said(docker, record)
    assert "saved" in said(docker, record)
    docker.cancel(record)  # is over: nothing happens


def test_a_container_that_was_removed_left_no_code(tmp_path: Path, docker: Backend) -> None:
    record = submitted(docker, job_of(container=IMAGE), folder_of(tmp_path, "sleep"))
    wait_for(lambda: "step:" in said(docker, record))
    client = os.environ["DOCKER_HOST"]
    subprocess.run(["podman", "--url", client, "kill", str(record.id)], check=True, capture_output=True)
    end = ended(docker, record)
    assert (end.state, end.exit_code) == ("failed", None)


def test_a_token_is_in_the_container_and_in_no_file_of_ours_or_nemo_run_s(
    tmp_path: Path, docker: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", PLANTED)
    folder = folder_of(tmp_path)
    write_secrets(folder, ["HF_TOKEN"])
    record = submitted(docker, job_of(container=IMAGE, secrets=("HF_TOKEN",)), folder)
    assert ended(docker, record).state == "done", said(docker, record)
    assert " token rank" in said(docker, record) and "no token" not in said(docker, record)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 7
    assert not [path for path in files if PLANTED in path.read_text(errors="replace")]
