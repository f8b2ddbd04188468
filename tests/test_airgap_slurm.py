"""The scripts of `airgap scripts`, submitted on a real Slurm whose nodes have no network."""

import json
import re
import sys
from pathlib import Path

import pytest
from seeds_table import read_table
from slurm_jobs import Desk
from slurm_support import Cluster
from support import nemotron, short

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
    script = (desk.folder / "scripts" / "test_training_simple.slurm").read_text()
    assert script.count("torchrun") == script.count("without torchrun") == 1, "its comment alone names it"
    (manifest,) = desk.folder.glob("*/artifacts/super3-sft-model/v1/manifest.json")
    assert [one["machine"]["processes"] for one in json.loads(manifest.read_text())["segments"]] == [1]


QUEUE = (
    "add qos boost_qos_dbg",
    "modify qos boost_qos_dbg set MaxWall=00:30:00 MaxTRESPerJob=node=2 Flags=DenyOnLimit",
    "modify user root set qos+=boost_qos_dbg",
)


def judged(cluster: Cluster, folder: Path, script: str, *words: str) -> tuple[int, str]:
    """What Slurm says of a script, without starting it."""
    said = cluster.run("head", "sbatch", "--test-only", *words, f"scripts/{script}", cwd=folder)
    return said.returncode, said.stderr


def test_the_guides_profile_is_accepted_by_a_queue_of_half_an_hour(accounting_slurm: Cluster) -> None:
    cluster, folder = accounting_slurm, accounting_slurm.shared / "leonardo"
    folder.mkdir()
    for words in QUEUE:
        cluster.checked("head", "sacctmgr", "-i", *words.split())
    profiles = read_table()[1]["env.toml"].replace("YOUR-ACCOUNT", "demo").replace('"boost_usr_prod"', '"batch"')
    # there are no modules here, and a login shell has a PATH that does not lead to the stand-in
    (folder / "env.toml").write_text(re.sub(r'module load[^"]*', "export PATH=$PWD/bin:$PATH", profiles))
    words = ("airgap", "scripts", "LEONARDO", "-c", "nano3_lora_automodel", "--container", "rl/nano3")
    written = cluster.run("head", *nemotron(*words), cwd=folder)
    assert written.returncode == 0, written.stderr
    assert "because the profile loads 12.6" in written.stderr
    assert "--cuda 12)" in (folder / "scripts" / "setup_environment.sh").read_text()
    names = sorted(path.name for path in (folder / "scripts").glob("*.slurm"))
    assert len(names) == 4
    for name in names:
        code, said = judged(cluster, folder, name)
        assert code == 0, f"{name}: {said}"
        code, said = judged(cluster, folder, name, "--time=00:31:00")
        assert code and "QOSMaxWallDurationPerJobLimit" in said, "the queue has a limit"
    enroot = folder / "bin" / "enroot"
    enroot.parent.mkdir()
    enroot.write_text('#!/bin/sh\nenv > variables\necho image > "$3"\n')
    enroot.chmod(0o755)
    submitted = cluster.run("head", "sbatch", "--parsable", "scripts/pull_container.slurm", cwd=folder)
    cluster.wait_for(submitted.stdout.strip(), "COMPLETED", "FAILED")
    log = "".join(file.read_text() for file in (folder / "logs" / "slurm").iterdir())
    assert (folder / "nemo-rl.v0.4.0.nemotron_3_nano.sqsh").read_text() == "image\n", log
    variables = (folder / "variables").read_text()
    assert f"ENROOT_CACHE_PATH={folder}/.cache/enroot\n" in variables
    assert "SLURM_CPUS_PER_TASK=8\n" in variables and "CUDA_VISIBLE_DEVICES" not in variables
