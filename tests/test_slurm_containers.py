"""srun's options for containers, as the test cluster has them: tasks see the image, its mounts and nothing else."""

from pathlib import Path

import pytest
from slurm_jobs import Desk
from slurm_support import Cluster


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A folder that has this machine's programs by mounts, and nothing but a name of its own."""
    folder = tmp_path / "image"
    folder.mkdir()
    for name in ("bin", "lib", "lib64"):
        (folder / name).symlink_to(f"usr/{name}")
    (folder / "name").write_text("of the image")
    return folder


def test_tasks_on_both_nodes_are_in_the_image(container_slurm: Cluster, image: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows").write_text("of the host")
    mounts = f"--container-mounts=/usr:/usr:ro,{tmp_path}/data:/data,{tmp_path}/data:/fixed:ro"
    options = [f"--container-image={image}", mounts, "--container-workdir=/data", "--no-container-mount-home"]
    tests = "pwd; cat /name; echo; cat rows; echo; ls /; echo $(hostname) > $(hostname); touch /fixed/new || true"
    said = container_slurm.run("head", "srun", "-N2", "-w", "n1,n2", *options, "sh", "-c", tests)
    assert said.returncode == 0, said.stderr
    assert said.stdout.count("/data\n") == said.stdout.count("of the image") == said.stdout.count("of the host") == 2
    assert "home" not in said.stdout and "work" not in said.stdout
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["n1", "n2", "rows"]
    assert said.stderr.count("Read-only file system") == 2


def test_without_an_image_nothing_changes(container_slurm: Cluster) -> None:
    assert container_slurm.checked("head", "srun", "pwd") == str(container_slurm.shared)


def test_a_mount_that_does_not_exist_fails_the_task(container_slurm: Cluster, image: Path) -> None:
    options = [f"--container-image={image}", "--container-mounts=/usr:/usr,/no/such/folder:/data"]
    said = container_slurm.run("head", "srun", *options, "true")
    assert said.returncode
    assert "/no/such/folder: No such file or directory" in said.stderr


@pytest.mark.slow
def test_a_step_runs_in_the_image_that_its_profile_names(container_slurm: Cluster, tmp_path: Path) -> None:
    desk = Desk(container_slurm, tmp_path.name, more='container_image = "/"\ncontainer_runtime = "pyxis"')
    result = desk.run("super3", "data", "prep", "sft", "-c", "tiny", "--sample", "60", "--run", "test-slurm")
    assert result.returncode == 0 and "published super3-sft-data:v1" in result.stdout, result.stdout + result.stderr
    (script,) = desk.folder.glob("store/jobs/*/job.sh")
    assert "--container-image=/\n" in script.read_text()
