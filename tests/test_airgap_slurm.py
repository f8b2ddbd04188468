"""The scripts of `airgap scripts`, submitted on a real Slurm whose nodes have no network."""

import re
import sys
from pathlib import Path

import pytest
from slurm_jobs import Desk
from slurm_support import Cluster
from support import short

pytestmark = pytest.mark.slow
STUBS = {
    # the Mamba packages are there once they were built
    "python": '[[ "$1 $2" != "-c import causal_conv1d, mamba_ssm" ]] || exec test -e calls\nexec {python} "$@"',
    "nemotron": 'echo "$*" >> calls',
}


@pytest.fixture
def desk(slurm: Cluster, tmp_path: Path) -> Desk:
    desk = Desk(slurm, tmp_path.name)
    assert desk.run("airgap", "scripts", "test-slurm", *short("sft")).returncode == 0
    programs = desk.folder / "automodel_env" / "bin"
    programs.mkdir(parents=True)
    for name, text in STUBS.items():
        (programs / name).write_text("#!/usr/bin/env bash\n" + text.format(python=sys.executable) + "\n")
        (programs / name).chmod(0o755)
    return desk


def submit(desk: Desk, script: str) -> str:
    """Run a script to its end; returns its log."""
    said = desk.cluster.run("head", "sbatch", f"scripts/{script}", env=desk.environment, cwd=desk.folder)
    found = re.search(r"Submitted batch job (\d+)", said.stdout)
    assert found, said.stdout + said.stderr
    desk.cluster.wait_for(found[1], "COMPLETED", "FAILED", "TIMEOUT", minutes=15)
    log = (desk.folder / "logs" / "slurm" / f"{script.partition('.')[0]}_{found[1]}.out").read_text(errors="replace")
    assert desk.cluster.state(found[1]) == "COMPLETED", log
    return log


def test_two_nodes_train_after_the_packages_were_compiled_once(desk: Desk) -> None:
    log = submit(desk, "train_automodel.slurm")
    assert "the Mamba packages are missing: compiling them first" in log
    assert "published super3-sft-model:v1" in log
    built = "airgap build airgap --target automodel_env\n"
    assert (desk.folder / "calls").read_text() == built
    submit(desk, "build_mamba_deps.slurm")
    assert (desk.folder / "calls").read_text() == 2 * built


def test_one_process_trains_without_torchrun(desk: Desk) -> None:
    log = submit(desk, "test_training_simple.slurm")
    assert "published super3-sft-model:v1" in log
    assert not (desk.folder / "calls").exists()
