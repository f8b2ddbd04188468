"""--run, --batch, --stage, jobs and pipeline on a real Slurm of two nodes."""

import json
import os
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest
from slurm_jobs import Desk
from slurm_support import Cluster
from support import SHORT, short

pytestmark = pytest.mark.slow


@pytest.fixture
def desk(slurm: Cluster, tmp_path: Path) -> Desk:
    return Desk(slurm, tmp_path.name)


def inside(pid: int) -> int:
    """The command that `nsenter`, process `pid`, has started: its child, and not what that may be asking just now."""
    while Path(f"/proc/{pid}/comm").read_text().strip() == "nsenter":
        pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    return pid


def test_a_stage_trains_over_two_nodes_and_its_log_is_shown(desk: Desk) -> None:
    result = desk.run("super3", "sft", *short("sft"), "--run", "test-slurm")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "started on n1,n2, attempt 1" in result.stdout
    assert "published super3-sft-model:v1" in result.stdout
    assert "finished" in result.stderr
    record = json.loads(next(desk.folder.glob("store/jobs/*/job.json")).read_text())
    assert record["profile"] == "test-slurm"
    manifest = json.loads((desk.folder / "store/artifacts/super3-sft-model/v1/manifest.json").read_text())
    assert [one["machine"]["processes"] for one in manifest["segments"]] == [2]


def test_what_could_not_start_is_not_submitted(desk: Desk) -> None:
    wrong = ("run.env.nodes=1", "model.architecture=none.yaml")
    result = desk.run("super3", "sft", *short("sft"), *wrong, "--run", "test-slurm")
    assert result.returncode == 2
    assert "could not run on test-slurm" in result.stderr and "none.yaml" in result.stderr
    assert not list(desk.folder.glob("store/jobs/*"))


def test_batch_says_the_id_and_jobs_lists_shows_and_cancels(desk: Desk) -> None:
    number = desk.batch("super3", "data", "prep", "sft", "-c", "tiny", "--sample", "100")
    assert desk.wait(number) == 0
    listed = json.loads(desk.run("jobs", "--json").stdout)
    assert [(one["id"], one["state"]["state"]) for one in listed] == [(number, "done")]
    assert "100 read" in desk.run("jobs", "logs", number).stdout
    long = desk.batch("super3", "sft", "-c", "tiny", "train.train_iters=100000")
    desk.cluster.wait_until(lambda: "step " in desk.log(long), minutes=10)
    other = desk.run("jobs", "cancel", long[:-1] or "x")
    assert other.returncode == 2 and "no job" in other.stderr
    assert desk.run("jobs", "cancel", long).returncode == 0
    assert desk.wait(long) == 130
    assert not (desk.job(long) / "secrets").exists()
    shown = desk.run("jobs").stdout
    assert "cancelled" in shown and "super3-sft" in shown


def test_ctrl_c_leaves_the_job_and_one_can_come_back(desk: Desk) -> None:
    words = ("super3", "sft", *short("sft"), "run.env.nodes=1", "--run", "test-slurm")
    process = subprocess.Popen(
        desk.command(*words),
        cwd=desk.folder,
        env=os.environ | desk.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    )
    assert process.stderr
    said = next((line for line in process.stderr if "Ctrl-C leaves it running" in line), "")
    assert said, process.communicate()
    os.kill(inside(process.pid), signal.SIGINT)  # not nsenter around it, which would end before it
    _, said = process.communicate()
    assert process.returncode == 130 and "keeps running without this command" in said, said
    back = desk.run("jobs", "logs", "last", "--follow")
    assert back.returncode == 0 and "published super3-sft-model:v1" in back.stdout


def test_the_pipeline_is_a_chain_of_jobs_with_a_report_at_its_end(desk: Desk) -> None:
    words = [f"{stage}.{word}" for stage, settings in SHORT.items() for word in settings]
    result = desk.run("super3", "pipeline", "-c", "tiny", *words, "run.env.nodes=1", "--batch", "test-slurm", "--json")
    assert result.returncode == 0, result.stderr
    records = json.loads(result.stdout)
    assert [record["name"] for record in records][-2:] == ["super3-eval", "super3-report"]
    assert len(records) == 9
    assert [record["after"] for record in records[1:]] == [[record["id"]] for record in records[:-1]]
    codes = {record["name"]: desk.wait(record["id"], minutes=20) for record in records}
    assert set(codes.values()) == {0}, codes
    made = {path.parent.name for path in desk.folder.glob("store/artifacts/*/v1")}
    assert {f"super3-{stage}-data" for stage in SHORT} | {"super3-sft-model", "super3-rl-model"} <= made
    assert (desk.folder / "store/report.html").exists() or list(desk.folder.glob("store/**/*.html"))


def test_stage_lays_out_what_a_person_can_start_on_a_node(desk: Desk) -> None:
    result = desk.run("super3", "data", "prep", "sft", "-c", "tiny", "--sample", "50", "--stage", "test-slurm")
    assert result.returncode == 0 and "laid out" in result.stdout, result.stderr
    script = next(desk.folder.glob("store/jobs/*/job.sh"))
    run = desk.cluster.run("head", "salloc", "--nodes=1", "bash", script, cwd=desk.folder)
    assert run.returncode == 0, run.stdout + run.stderr
    assert list(desk.folder.glob("store/artifacts/super3-sft-data/v1"))


def test_a_dry_run_shows_script_and_what_the_scheduler_says(desk: Desk) -> None:
    good = desk.run("super3", "sft", "-c", "tiny", "--run", "test-slurm", "--dry-run")
    assert good.returncode == 0, good.stderr
    assert "#SBATCH --nodes=2" in good.stdout and "to start at" in good.stdout
    assert "env.toml:" in good.stdout and "[test-slurm]" in good.stdout
    bad = desk.run("super3", "sft", "-c", "tiny", "--run", "test-slurm", "run.env.nodes=9", "--dry-run")
    assert bad.returncode == 1 and "refused" in bad.stdout
    submitted = desk.run("super3", "sft", "-c", "tiny", "--batch", "test-slurm", "run.env.partition=nosuch")
    assert submitted.returncode == 2 and "partition" in submitted.stderr
    assert not list(desk.folder.glob("store/jobs/*"))
