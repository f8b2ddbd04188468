"""--run, --batch and --stage, as far as they need no scheduler."""

import json
import os
import re
import time
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from support import nemotron, no_wandb, run_forked, short

PROFILES = """
[wandb]
project = "goats"

[far]
executor = "slurm"
partition = "batch"
nodes = 2
gpus_per_node = 4
home = "/far-away/me/store"
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
remote_job_dir = "/far-away/me/jobs"

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
    notes = few.partition("# notes\n")[2]
    assert "8 rows per step: 8 of the 16 processes of tasks are used, on 1 node; a multiple of 16 rows" in notes
    assert re.search(r"^nodes: 1 +# 8 rows per step; env\.toml:\d+ \[tasks\] says 2$", few, re.MULTILINE)
    assert re.search(r"^ntasks_per_node: 8 +# env\.toml:\d+ \[tasks\]$", few, re.MULTILINE)
    assert "\nnproc_per_node: 8" not in few
    many = typed(folder, *words, "train.global_batch_size=16").stdout
    command = many.partition("# command\n")[2].partition("\n")[0]
    assert " -m nemotron_shared.engine.torchrun --nnodes=2 --nproc-per-node=8 -m stages.sft.train " in command
    started = typed(folder, *words, "train.global_batch_size=16", "run.env.launcher=srun", "--json").stdout
    assert json.loads(started)["command"].startswith("srun --ntasks=16 ")


def test_a_container_sees_what_the_settings_name(folder: Path) -> None:
    rows, hub, mounted = folder.parent / "rows", folder.parent / "models--org--name", folder.parent / "mounted"
    (hub / "snapshots" / "1a2b").mkdir(parents=True)
    for place in (rows, mounted):
        place.mkdir()
    profile = f'[boxed]\nexecutor = "slurm"\ncontainer_image = "nvcr/x:1"\nmounts = ["{mounted}:{mounted}"]\n'
    (folder / "env.toml").write_text(profile)
    sources = f"data_prep.source=[{rows}/*.jsonl,{mounted}/more.jsonl,/nowhere/rows.jsonl]"
    words = ("super3", "data", "prep", "sft", "-c", "tiny", sources, f"data_prep.tokenizer={hub}/snapshots/1a2b")
    script = json.loads(typed(folder, *words, "--run", "boxed", "--dry-run", "--json").stdout)["script"]
    (mounts,) = re.findall(r"--container-mounts=(.*?)\s*\\?\n", script)
    own = [mount.strip("'") for mount in mounts.split(",")][-3:]
    assert sorted(own) == sorted(f"{path}:{path}" for path in (mounted, rows, hub)), mounts


def test_a_job_without_a_key_for_wandb_is_refused_where_that_can_be_known(folder: Path) -> None:
    none = no_wandb(folder)
    words = ("super3", "sft", "-c", "tiny", "--dry-run")
    said = "logger.wandb_project: W&B has no key"
    before = "# to do before it is submitted"
    for more in (("--batch", "here"), ("--run", "far", "run.env.nodes=1")):
        shown = typed(folder, *words, *more, **none)
        to_do, _, problems = shown.stdout.partition(before)[2].partition("# problems")
        assert shown.returncode == 0 and said in to_do and "none: this could run after that" in problems, more
    submitted = typed(folder, *words[:-1], "--batch", "here", **none)
    assert submitted.returncode == 2 and said in submitted.stderr and not list(folder.glob("**/job.json"))
    refused = typed(folder, *words, "logger.wandb_project=mine", **none)
    assert refused.returncode == 1 and said in refused.stdout.partition("# problems")[2]
    assert said not in typed(folder, *words, "--batch", "here", **none | {"WANDB_MODE": "offline"}).stdout
    assert said not in typed(folder, *words, "--run", "far", **none | {"WANDB_API_KEY": "k"}).stdout
    (folder / ".netrc").write_text("machine api.wandb.ai login user password k\n")
    logged_in = none | {"HOME": str(folder)}
    assert said not in typed(folder, *words, "--run", "far", **logged_in).stdout
    image = ("run.env.container_image=/images/nemo.sqsh",)  # which has no home folder
    refused = typed(folder, *words, "--run", "far", *image, **logged_in).stdout.partition(before)[2]
    assert said in refused and "which a container has not" in refused
    offline = typed(folder, *words, "--run", "far", *image, **none | {"WANDB_MODE": "offline"}).stdout
    assert said not in offline and "\nexport WANDB_MODE=offline\n" in offline
    over_ssh = typed(folder, *words, "--run", "login", **none).stdout
    assert said not in over_ssh and "W&B's key must be there" in over_ssh.partition("# notes")[2]


def test_a_job_whose_python_lacks_the_engine_is_refused_where_that_can_be_known(folder: Path) -> None:
    words = ("super3", "sft", "-c", "tiny", "engine=automodel", "--dry-run")
    lacks = "engine 'automodel' needs the packages nemo-automodel ==0.7.0 (not installed)"
    without = {"NEMOTRON_ENGINES": str(folder / "none")}
    for name in ("here", "far"):
        refused = typed(folder, *words, "--batch", name, **without)
        assert refused.returncode == 1 and lacks in refused.stdout.partition("# problems")[2], name
    assert "nemotron engine install automodel" in refused.stdout
    for unknown in (("--batch", "far", "run.env.python=/opt/bin/python"), ("--batch", "login")):
        assert lacks not in typed(folder, *words, *unknown, **without).stdout, unknown


SEED = """
[YOUR-CLUSTER]
executor = "slurm"
account = "YOUR-ACCOUNT"
partition = "batch"
nodes = 4
ntasks_per_node = 8
gpus_per_node = 8
mounts = ["/lustre:/lustre"]

[FAR]
extends = "YOUR-CLUSTER"
tunnel = "ssh"
host = "login.invalid"
user = "me"
remote_job_dir = "/far-away/me/jobs"
"""


@pytest.fixture
def seed(folder: Path) -> Path:
    """The profile of four nodes with eight GPUs each."""
    (folder / "env.toml").write_text(SEED)
    return folder


@pytest.mark.parametrize("stage", ["pretrain", "sft", "rl"])
def test_a_recipe_takes_its_layout_for_the_gpus_of_the_profile(seed: Path, stage: str) -> None:
    words = ("super3", stage, "--run", "YOUR-CLUSTER", "--dry-run", "--json")
    result = typed(seed, *words)
    answer = json.loads(result.stdout)
    assert "YOUR-CLUSTER has 32 GPUs: the layout engine=super3_32gpus is used" in result.stderr
    assert " engine=super3_32gpus " in answer["script"]
    engine = answer["config"]["engine"]
    assert 32 in (engine.get("world_size"), 8 * engine.get("num_nodes", 0))
    assert all(problem.startswith("run.") for problem in answer["problems"]), answer["problems"]  # no inputs yet
    own = (*words, "engine=super3")
    said = "\n".join(json.loads(typed(seed, *own).stdout)["problems"])
    assert ("take its layout for this size: engine=super3_32gpus" in said) == (
        stage != "sft"
    )  # for 16, which divide 32


def test_where_a_recipe_has_no_layout_the_refusal_says_how_many_nodes_it_takes(seed: Path) -> None:
    words = ("--run", "YOUR-CLUSTER", "run.env.nodes=2", "--dry-run", "--json")
    trains = json.loads(typed(seed, "super3", "pretrain", *words).stdout)["problems"]
    assert "run.env.nodes=8 with --run" in "\n".join(trains)
    reinforces = json.loads(typed(seed, "super3", "rl", *words).stdout)["problems"]
    assert "run.env.nodes=32 run.env.gpus_per_node=8" in "\n".join(reinforces)
    assert "32gpus" not in "\n".join([*trains, *reinforces])


def test_jobs_that_fill_their_nodes_ask_for_all_of_them(seed: Path) -> None:
    def asked(*words: str) -> dict[str, str]:
        job = json.loads(typed(seed, "super3", *words, "--run", "YOUR-CLUSTER", "--dry-run", "--json").stdout)["job"]
        return {key: str(job[key]) for key in ("CPUs per node", "memory per node", "whole nodes")}

    everything = {"CPUs per node": "all", "memory per node": "all"}
    assert asked("pretrain") == everything | {"whole nodes": "yes (the job uses all GPUs of its nodes)"}
    assert asked("data", "prep", "sft", "-c", "tiny") == everything | {
        "whole nodes": "yes (the job uses all CPUs that it finds)"
    }
    counted = {"CPUs per node": "6", "memory per node": "the partition's default"}
    part = counted | {"whole nodes": "no (the job uses a part of its node)"}
    assert asked("data", "prep", "sft", "-c", "tiny", "data_prep.workers=6") == part
    assert asked("sft", "-c", "tiny", "run.env.gpus_per_node=2", "run.env.ntasks_per_node=2", "run.env.nodes=1") == (
        part | {"CPUs per node": "16"}
    )
    assert asked("sft", "-c", "tiny", "run.env.gpus_per_node=0", "run.env.nodes=1") == part | {"CPUs per node": "8"}


def test_an_evaluation_through_the_launcher_runs_here_with_what_the_profile_says(seed: Path) -> None:
    alone = ("run.model=null", "engine.deployment.checkpoint_path=/lustre/m", "engine.params.tokenizer=/lustre/m")
    words = ("nano3", "eval", *alone, "--dry-run", "--json")
    answer = json.loads(typed(seed, *words, "--batch", "YOUR-CLUSTER", "run.env.qos=high").stdout)
    where = answer["config"]["engine"]["execution"]
    assert (where["type"], where["account"], where["partition"]) == ("slurm", "YOUR-ACCOUNT", "batch")
    assert where["sbatch_extra_flags"] == {"qos": "high", "mem": "0"}
    assert where["mounts"]["both"] == ["/lustre:/lustre", f"{seed}/store:{seed}/store"]
    assert "#SBATCH" not in answer["script"] and " -m stages.eval.train " in answer["script"]
    assert "engine.execution." not in "\n".join(answer["problems"])
    far = json.loads(typed(seed, *words, "--batch", "FAR").stdout)["config"]["engine"]["execution"]
    assert (far["hostname"], far["username"], far["output_dir"]) == (
        "login.invalid",
        "me",
        "/far-away/me/jobs/evaluations",
    )
    noted = ("execution.auto_export=x", "--batch", "YOUR-CLUSTER")
    note = "execution.auto_export has no effect here"
    for shown in (typed(seed, *words, *noted), typed(seed, *words[:-1], *noted)):
        assert (shown.stdout.count(note), shown.stderr.count(note)) == (1, 0)
    submitted = typed(seed, "nano3", "eval", *noted)
    assert submitted.returncode == 2 and submitted.stderr.count(note) == 1
    refused = typed(seed, "nano3", "eval", "--batch", "FAR", "--dry-run")
    assert refused.returncode == 2 and "its artifacts cannot be read from here" in refused.stderr
    chained = typed(seed, "super3", "pipeline", "--batch", "YOUR-CLUSTER")
    assert chained.returncode == 2 and "cannot wait for the jobs before it" in chained.stderr


def test_a_profile_may_be_overruled_and_a_recipe_may_wish(folder: Path) -> None:
    recipe = folder / "mine.yaml"
    recipe.write_text("defaults: [tiny, _self_]\nrun:\n  env: {qos: high, nodes: 7}\n")
    shown = typed(folder, "super3", "sft", "-c", "mine.yaml", "run.threads=5", "--run", "far", "--dry-run").stdout
    assert "#SBATCH --qos=high" in shown and "mine.yaml:3" in shown
    assert "#SBATCH --nodes=2" in shown and "#SBATCH --nodes=7" not in shown
    assert "threads: 5" in shown


def test_inputs_of_another_file_system_are_not_judged_from_here(folder: Path) -> None:
    words = ("super3", "sft", "-c", "local", "data_prep.source=chats.jsonl", "--dry-run")
    shared = typed(folder, *words, "--run", "far", f"run.env.home={folder / 'there'}")
    assert shared.returncode == 1 and "no artifact" in shared.stdout and not (folder / "there").exists()
    assert "make it: nemotron super3 pretrain -c local --batch far" in shared.stdout
    for profile in ("far", "login"):
        unseen = typed(folder, *words, "--run", profile)
        assert unseen.returncode == 1 and "no artifact" not in unseen.stdout
        assert "model: super3-pretrain-model:latest (not seen from here)" in unseen.stdout
        assert "not seen from here: model, super3-pretrain-model:latest" in unseen.stdout.partition("# notes")[2]
    assert "nobody.invalid cannot be reached" in unseen.stdout.partition("# problems")[2]
    assert "/far-away/me/jobs/super3-sft" in unseen.stdout and not Path("/far-away").exists()


def test_a_dry_run_ends_with_its_problems_and_shows_what_is_special_about_the_job(folder: Path) -> None:
    words = ("super3", "sft", "-c", "tiny", "--batch", "far", "--dry-run")
    shown = typed(folder, *words, OMP_NUM_THREADS="3").stdout
    titles = [line for line in shown.splitlines() if re.fullmatch("# [a-z ,()/.]+", line)]
    expected = ["inputs", "makes", "command", "job", "what slurm would be given", "notes", "problems"]
    assert [title.removeprefix("# ") for title in titles if title.removeprefix("# ") in expected] == expected
    assert "taken from this shell: WANDB_MODE=offline, HF_HUB_OFFLINE=1, OMP_NUM_THREADS=3" in shown
    assert "lines that are the same in every job; --stage far lays the whole script out" in shown
    assert "on_warning" not in shown and "run_step() {" in shown
    assert "on_warning" in json.loads(typed(folder, *words, "--json").stdout)["script"]


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
