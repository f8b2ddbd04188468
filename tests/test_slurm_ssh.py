"""A cluster that is reached over ssh: the folder is copied there, the job runs there, state and log come from there."""

import sys
from pathlib import Path

import pytest
from slurm_jobs import Desk
from slurm_support import Cluster, need_slurm
from support import short

pytestmark = pytest.mark.slow

TOKEN = "hf_PlantedForALoginNode0123456789abcdef"


def test_a_job_goes_over_ssh_and_its_log_comes_back(tmp_path: Path) -> None:
    need_slurm()
    with Cluster(tmp_path / "slurm", "--sshd") as cluster:
        desk = Desk(cluster, "desk")
        jobs = cluster.folder / "far" / "jobs"
        over = f"""
        tunnel = "ssh"
        host = "10.77.0.1"
        user = "root"
        identity = "{cluster.folder}/ssh/user"
        remote_job_dir = "{jobs}"
        packager = "pattern"
        packager_include_pattern = ["*.jsonl"]
        """
        text = (desk.folder / "env.toml").read_text().replace("nodes = 2", f"nodes = 2\n{over}")
        (desk.folder / "env.toml").write_text(text)
        rows = [f'{{"text": "Row {number} tells of a goat."}}\n' for number in range(60)]
        (desk.folder / "mine.jsonl").write_text("".join(rows))

        def type_on_n1(*words: str) -> str:  # where Slurm's programs are not asked
            command = [sys.executable, "-m", "nemotron_app.main", *words]
            environment = desk.environment | {"HF_TOKEN": TOKEN, "SLURM_CONF": "/nowhere"}
            result = cluster.run("n1", *command, env=environment, cwd=desk.folder)
            assert result.returncode == 0, result.stdout + result.stderr
            return result.stdout + result.stderr

        shown = type_on_n1("super3", "sft", "-c", "tiny", "--run", "test-slurm", "--dry-run")
        assert "to start at" in shown and "not seen from here" in shown
        prepare = ("super3", "data", "prep", "pretrain", "-c", "tiny", "data_prep.source=mine.jsonl")
        said = type_on_n1(*prepare, "--run", "test-slurm")
        assert "published super3-pretrain-data:v1" in said and "finished" in said
        (there,) = jobs.glob("*-super3-pretrain-data-*")
        assert (there / "files" / "mine.jsonl").exists() and (there / "exit_code").read_text() == "0\n"
        assert not list(cluster.folder.rglob("secrets"))
        said = type_on_n1("super3", "sft", *short("sft"), "--batch", "test-slurm")
        follows = type_on_n1("jobs", "logs", "last", "--follow")
        assert "started on n1,n2" in follows and "published super3-sft-model:v1" in follows
        listed = type_on_n1("jobs")
        assert listed.count("done") == 2, listed
        assert TOKEN not in shown + said + follows + listed
        held = [path for path in cluster.folder.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
        assert held == []
