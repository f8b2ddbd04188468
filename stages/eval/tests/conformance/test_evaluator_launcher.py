"""The real nemo-evaluator-launcher: it accepts what we render, and we believe what its `status` says.

No Slurm, no Docker: the dry run renders the scripts, and a `docker` of ours stands in where a container would run.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from evaluator_support import config_of, program

from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.run import Run
from stages.eval.engines.nemo_evaluator_launcher.launcher import Launcher, rendered_config
from stages.eval.harness import Program
from stages.eval.train import main

pytestmark = pytest.mark.evaluator

CLUSTER = (
    "engine.execution.username=me",
    "engine.execution.account=mine",
    "engine.execution.output_dir=/lustre/mine/evaluations",
)
RECIPES = {
    "super3": ("super3", ()),
    "super3 on a cluster": ("super3", (*CLUSTER, "engine.execution.type=slurm", "engine.execution.partition=batch")),
    "nano3": ("nano3", CLUSTER),
    "super3_base": ("super3_base", ()),
    "lightning35": ("lightning35", ()),
    "two instances, W&B": ("nano3", (*CLUSTER, "engine.execution.num_nodes=2", "engine.execution.num_instances=2",
                                     "engine.wandb.project=nemotron")),
    "vllm": ("nano3", (*CLUSTER, "engine.deployment.type=vllm", "engine.container=vllm/vllm-openai:v0.11.0")),
}  # fmt: skip
# Stands in for the container: it leaves what a task leaves, unless told to die as a dead daemon does.
DOCKER = """#!/bin/sh
[ -e "{folder}/dead" ] && {{ echo Cannot connect to the Docker daemon >&2; exit 1; }}
[ "$1" = run ] || exit 0
while [ $# -gt 0 ]; do
  case "$2" in *:/results) folder="${{2%:/results}}";; esac
  shift
done
cp "{folder}/results.yml" "$folder/results.yml"
mkdir -p "$folder/nemo-model"
echo '{{"n-samples": {{"hellaswag": {{"original": 10042, "effective": 10}}}}}}' > "$folder/nemo-model/results_1.json"
"""
RESULTS = {"results": {"tasks": {"hellaswag": {"metrics": {
    "acc_norm": {"scores": {"acc_norm": {"value": 0.7, "stats": {"stderr": 0.15}}}}}}}}}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, a `docker` of ours, and the variables that the recipes ask of the host."""
    (tmp_path / "home").mkdir()
    (tmp_path / "results.yml").write_text(yaml.safe_dump(RESULTS))
    docker = program(tmp_path / "bin" / "docker", DOCKER.format(folder=tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{docker.parent}{os.pathsep}{os.environ['PATH']}")
    for name in ("HF_TOKEN", "WANDB_API_KEY"):
        monkeypatch.setenv(name, "none")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def executable() -> Path:
    return Path(os.environ["NEMOTRON_EVALUATOR"]) / "nemo-evaluator-launcher"


def dry_run(place: Path, told: dict) -> "subprocess.CompletedProcess[str]":
    file = place / "launcher.yaml"
    file.write_text(yaml.safe_dump(told, sort_keys=False))
    command = [str(executable()), "run", "--config", str(file), "--dry-run"]
    environment = Program(executable()).environment(telemetry=False)
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", RECIPES)
def test_the_launcher_renders_our_config(place: Path, name: str) -> None:
    recipe, overrides = RECIPES[name]
    told = rendered_config(config_of(recipe, *overrides), "/lustre/models/rl")
    answer = dry_run(place, told)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    for task in told["evaluation"]["tasks"]:
        assert f"{task['name']}." in answer.stdout
    assert "NEMO_EVALUATOR_TELEMETRY_LEVEL" in answer.stdout
    if told["defaults"][0]["execution"] != "local":
        assert "#SBATCH --account mine" in answer.stdout
        assert "#SBATCH --time 04:00:00" in answer.stdout
        assert ("--dest wandb" in answer.stdout) == ("export" in told)


def test_the_launcher_itself_lets_a_typo_pass(place: Path) -> None:
    """The reason for our own schema: should this fail one day, the launcher has become strict."""
    told = rendered_config(config_of("nano3", *CLUSTER), "/lustre/models/rl")
    told["execution"]["wall_time"] = "01:00:00"
    told["evaluation"]["nemo_evaluator_config"]["config"]["params"]["paralellism"] = 9
    assert dry_run(place, told).returncode == 0


def test_its_task_list_has_the_recipes_tasks(place: Path) -> None:
    launcher = Launcher(Program(executable()), Run(place, "eval"), telemetry=False)
    launcher.require_tasks([task.name for task in config_of("super3").engine.tasks])
    with pytest.raises(UserError, match="no task 'adlr_mmul'") as caught:
        launcher.require_tasks(["adlr_mmul"])
    assert "adlr_mmlu" in str(caught.value)


def asked(place: Path, *more: str) -> Sequence[str]:
    """The whole step: one task, an endpoint that already runs, Docker on this machine."""
    return ["-c", "super3", f"run.home={place}/store", "run.model=null", "evaluation.tasks=[hellaswag]",
            f"engine.launcher={executable()}", "engine.deployment.type=none", "engine.params.tokenizer=/models/rl",
            "engine.deployment.url=http://127.0.0.1:9/v1/completions", "engine.deployment.api_key_name=HF_TOKEN",
            f"engine.execution.output_dir={place}/out", "engine.poll_interval=1", *more]  # fmt: skip


def test_scores_come_back_from_submitted_jobs(place: Path) -> None:
    assert main(asked(place)) == 0
    made = place / "store" / "artifacts" / "super3-eval-results"
    results = json.loads((made / "v1" / "results.json").read_text())
    (score,) = results["scores"]
    assert (score["task"], score["metric"], score["value"], score["n"]) == ("hellaswag", "acc_norm", 0.7, 10)
    assert main(asked(place)) == 0, "finished: nothing is submitted again"
    assert not (made / "v2").exists()


def test_a_dead_docker_is_a_failure_although_the_launcher_says_zero(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "dead").touch()
    assert main(asked(place)) == 2
    assert "some jobs failed" in capsys.readouterr().err
