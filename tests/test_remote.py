"""--run, --batch and --stage, as far as they need no scheduler."""

import json
import os
import re
import time
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from support import nemotron, run_forked, short

PROFILES = """
[wandb]
project = "goats"

[far]
executor = "slurm"
partition = "batch"
nodes = 2
gpus_per_node = 4
home = "/lustre/me/store"
[far.set]
"run.threads" = 3

[tasks]
executor = "slurm"
nodes = 2
ntasks_per_node = 8
gpus_per_node = 8

[login]
extends = "far"
tunnel = "ssh"
host = "nobody.invalid"
remote_job_dir = "/lustre/me/jobs"

[wrong]
executor = "local"
[wrong.set]
"sft.train.train_iter" = 3
"rl.train.nothing" = 4

[moment]
executor = "local"
[moment.set]
"train.train_iters" = 1979-05-27

[here]
executor = "local"
secrets = ["PLANTED"]
[here.set]
"run.threads" = 1
"""
TOKEN = "planted-0123456789"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "wörk dir"
    folder.mkdir()
    (folder / "env.toml").write_text(PROFILES)
    return folder


def typed(folder: Path, *words: str, **variables: str) -> "CompletedProcess[str]":
    own = {"NEMOTRON_HOME": str(folder / "store"), "HF_HUB_OFFLINE": "1", "PLANTED": TOKEN, "WANDB_MODE": "offline"}
    environment = os.environ | own | variables
    return run_forked(nemotron(*words), folder, environment)


def test_recipe_then_profile_then_command_line(folder: Path) -> None:
    words = ("super3", "sft", "-c", "tiny", "run.env.nodes=1", "optimizer.lr=0.5", "--run", "far")
    answer = json.loads(typed(folder, *words, "--dry-run", "--json").stdout)
    said = {key: answer["origins"][key] for key in ("run.home", "run.threads", "logger.wandb_project", "optimizer.lr")}
    assert said == {
        "run.home": "env.toml:10 [far]",
        "run.threads": "env.toml:12 [far]",
        "logger.wandb_project": "env.toml [wandb]",
        "optimizer.lr": "command line",
    }
    assert answer["config"]["run"]["nproc_per_node"] == 4
    assert "#SBATCH --nodes=1\n" in answer["script"] and "#SBATCH --gpus-per-node=4\n" in answer["script"]
    assert answer["scheduler"].startswith("not asked: ") or "SLURM_CONF" in os.environ


def test_a_dry_run_says_what_the_script_runs_and_why_it_takes_fewer_nodes(folder: Path) -> None:
    words = ("super3", "sft", "-c", "tiny", "--run", "tasks", "--dry-run")
    few = typed(folder, *words).stdout  # 8 rows per step
    assert re.search(r"^nodes: 1 +# 8 rows per step; env\.toml:\d+ \[tasks\] says 2$", few, re.MULTILINE)
    assert re.search(r"^ntasks_per_node: 8 +# env\.toml:\d+ \[tasks\]$", few, re.MULTILINE)
    assert "\nnproc_per_node: 8" not in few
    many = typed(folder, *words, "train.global_batch_size=16").stdout
    command = many.partition("# command\n")[2].partition("\n")[0]
    assert " -m nemotron_shared.runtime.torchrun --nnodes=2 --nproc-per-node=8 -m stages.sft.train " in command
    started = typed(folder, *words, "train.global_batch_size=16", "run.env.launcher=srun", "--json").stdout
    assert json.loads(started)["command"].startswith("srun --ntasks=16 ")


def test_a_job_without_a_key_for_wandb_is_refused_where_that_can_be_known(folder: Path) -> None:
    none = {"WANDB_API_KEY": "", "WANDB_MODE": "", "NETRC": str(folder / "none"), "WANDB_CONFIG_DIR": str(folder)}
    words = ("super3", "sft", "-c", "tiny", "--dry-run")
    said = "logger.wandb_project: W&B has no key"
    for more in (("--batch", "here"), ("--run", "far", "run.env.nodes=1"), ("logger.wandb_project=mine",)):
        refused = typed(folder, *words, *more, **none)
        assert refused.returncode == 1 and said in refused.stdout.partition("# problems")[2], more
    assert said not in typed(folder, *words, "--batch", "here", **none | {"WANDB_MODE": "offline"}).stdout
    assert said not in typed(folder, *words, "--run", "far", **none | {"WANDB_API_KEY": "k"}).stdout
    over_ssh = typed(folder, *words, "--run", "login", **none).stdout
    assert said not in over_ssh and "W&B's key must be there" in over_ssh.partition("# notes")[2]


def test_a_profile_may_be_overruled_and_a_recipe_may_wish(folder: Path) -> None:
    recipe = folder / "mine.yaml"
    recipe.write_text("defaults: [tiny, _self_]\nrun:\n  env: {qos: high, nodes: 7}\n")
    shown = typed(folder, "super3", "sft", "-c", "mine.yaml", "run.threads=5", "--run", "far", "--dry-run").stdout
    assert "#SBATCH --qos=high" in shown and "mine.yaml:3" in shown
    assert "#SBATCH --nodes=2" in shown and "#SBATCH --nodes=7" not in shown
    assert "threads: 5" in shown


def test_inputs_of_another_file_system_are_not_judged_from_here(folder: Path) -> None:
    words = ("super3", "sft", "-c", "local", "data_prep.source=chats.jsonl", "--dry-run")
    shared = typed(folder, *words, "--run", "far")
    assert shared.returncode == 1 and "there is no artifact" in shared.stdout
    over_ssh = typed(folder, *words, "--run", "login")
    assert over_ssh.returncode == 1 and "there is no artifact" not in over_ssh.stdout
    assert "not looked for from here: model, super3-pretrain-model:latest" in over_ssh.stdout
    assert "refused: nobody.invalid cannot be reached" in over_ssh.stdout
    assert "/lustre/me/jobs/super3-sft" in over_ssh.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--run", "fer"), "no profile named 'fer'\n  did you mean 'far'?"),
        (("--run", "far", "--batch", "far"), "--run and --batch exclude each other"),
        (("--run", "far", "--machine", "m.yaml"), "--machine describes"),
        (("run.env.nodes=2",), "this runs here"),
        (("--run", "far", "run.env.node=2"), "run.env has no key 'node'"),
        (("--run", "far", "run.env.nodes=two"), "command line nodes: "),
        (("--run", "far", "train.train_iter=2"), "train.train_iter"),
        (("--run", "far", "run.env=5"), "run.env"),
        (("--run", "here", "train.global_batch_size=abc"), "global_batch_size"),
        (("--run", "wrong"), "[wrong] set: unknown key 'train.train_iter'"),
        (("run.env.nodes=" + "[" * 3000, "--run", "far"), "this value cannot be read"),
        (("run.env.nodes=010", "--run", "far"), "command line: run.env.nodes: 010 is the number 8 in YAML"),
        (("--run", "moment"), "train.train_iters"),
    ],
)
def test_mistakes_are_told(folder: Path, words: tuple[str, ...], said: str) -> None:
    result = typed(folder, "super3", "sft", "-c", "tiny", *words)
    assert result.returncode == 2 and said in result.stderr, result.stderr
    assert "Traceback" not in result.stderr
    assert not list(folder.glob("store/jobs/*"))


def test_a_step_in_the_background_keeps_its_log_its_code_and_no_secret(folder: Path) -> None:
    result = typed(folder, "super3", "data", "prep", "sft", "-c", "tiny", "--sample", "60", "--batch", "here", "--json")
    (record,) = json.loads(result.stdout)
    job = Path(record["folder"])
    end = time.monotonic() + 300
    while not (job / "exit_code").exists() and time.monotonic() < end:
        time.sleep(0.2)
    assert (job / "exit_code").read_text() == "0\n", (job / "log.txt").read_text()
    assert "60 read" in typed(folder, "jobs", "logs", "last").stdout
    assert [one["state"]["state"] for one in json.loads(typed(folder, "jobs", "--json").stdout)] == ["done"]
    held = [path for path in job.rglob("*") if path.is_file() and TOKEN in path.read_text(errors="replace")]
    assert held == [] and not (job / "secrets").exists()
    manifest = json.loads((folder / "store/artifacts/super3-sft-data/v1/manifest.json").read_text())
    assert manifest["producer"]["git"] == record["commit"]
    # what it was made with, again, from its own folder
    again = typed(folder, "super3", "data", "prep", "sft", "-c", str(job / "config.yaml"))
    assert "unchanged: using super3-sft-data:v1" in again.stderr, again.stderr


def test_a_job_means_what_the_same_command_means_here(folder: Path) -> None:
    assert typed(folder, "super3", "data", "prep", "sft", "-c", "tiny", "--sample", "60").returncode == 0
    recipe = folder / "mine.yaml"
    recipe.write_text("defaults: [tiny, _self_]\noptimizer:\n  lr: 0.001\n")
    words = ("super3", "sft", "-c", "mine.yaml", *short("sft")[2:-3], "train.train_iters=2")
    here = typed(folder, *words)
    assert here.returncode == 0 and "published super3-sft-model:v1" in here.stderr, here.stderr
    job = typed(folder, *words, "--run", "here")
    assert job.returncode == 0 and "unchanged: using super3-sft-model:v1" in job.stdout, job.stdout + job.stderr
    assert (next(folder.glob("store/jobs/*/own/mine.yaml"))).read_text() == recipe.read_text()


def test_what_cannot_start_is_not_submitted(folder: Path) -> None:
    result = typed(folder, "super3", "sft", *short("sft"), "model.architecture=none.yaml", "--batch", "here")
    assert result.returncode == 2 and "could not run on here" in result.stderr and "none.yaml" in result.stderr
    assert not list(folder.glob("store/jobs/*"))
