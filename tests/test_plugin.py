"""A package from outside the repository adds an engine, a reward, a task, a family and a log, by entry points."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from plugin_support import PLUGIN, write_entry_points
from support import nemotron, short

from nemotron_shared.tracking.metrics import is_known, read_metrics


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment of a process in which the package is installed."""
    site = tmp_path_factory.mktemp("site")
    write_entry_points(site)
    home = tmp_path_factory.mktemp("home")
    paths = os.pathsep.join([str(site), str(PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": paths, "NEMOTRON_HOME": str(home)}


def run(env: Mapping[str, str], *words: str, code: int = 0) -> str:
    result = subprocess.run(nemotron(*words), env=dict(env), capture_output=True, text=True)
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout + result.stderr


def test_the_family_is_listed_and_its_config_is_found(installed: Mapping[str, str]) -> None:
    assert "A family of toys" in run(installed, "--help")
    said = run(installed, "toyfamily", "sft", "-c", "small", "--dry-run", "run.missing_data=prepare")
    assert "toyfamily-sft-model" in said
    assert "a red toy for 2 steps" in said
    assert "TOY_LAUNCHED=yes" in said
    assert "toyfamily has no rl stage" in run(installed, "toyfamily", "rl", code=2)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("engine=toys",), "did you mean 'toy'?"),
        (("engine=toy", "engine.color=blue"), "did you mean 'engine.colour'?"),
        (("engine=toy", "engine.colour=green"), "engine.colour: Input should be 'red' or 'blue'"),
        (("engine=toy", "engine.colour=blue", "train.train_iters=3"), "train.train_iters: blue toys need an even"),
    ],
)
def test_its_settings_are_validated_by_its_own_class(
    installed: Mapping[str, str], words: tuple[str], told: str
) -> None:
    assert told in run(installed, "super3", "sft", "-c", "tiny", "-d", *words, code=2 if "did you" in told else 1)


@pytest.mark.slow
def test_the_engine_works_through_the_command(installed: Mapping[str, str]) -> None:
    words = ("toyfamily", "sft", "-c", "small", "--json")
    made = json.loads(run_json(installed, *words))
    config = json.loads((Path(made["path"]) / "config.json").read_text())
    assert config == {"model_type": "toy", "colour": "red"}
    assert json.loads(run_json(installed, *words))["reused"]


def run_json(env: Mapping[str, str], *words: str) -> str:
    result = subprocess.run(nemotron(*words), env=dict(env), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_the_evaluation_task_becomes_data(installed: Mapping[str, str]) -> None:
    words = [*short("eval"), "--json", "data_prep.tasks=[capitals]"]
    made = json.loads(run_json(installed, "super3", "data", "prep", "eval", *words))
    folder = Path(made["path"])
    assert {"name": "capitals", "kind": "choice", "rows": 2} in json.loads((folder / "tasks.json").read_text())
    assert "Chad" in (folder / "capitals.jsonl").read_text()
    unknown = run(installed, "super3", "data", "prep", "eval", "-c", "tiny", "data_prep.tasks=[capital]", code=2)
    assert "did you mean 'capitals'?" in unknown


@pytest.mark.slow
def test_the_reward_is_known_by_its_name(installed: Mapping[str, str]) -> None:
    rewards = "rewards=[{name: brevity, weight: 1.0}]"
    said = run(installed, "super3", "rl", "-c", "tiny", "-d", "run.missing_data=prepare", rewards)
    assert "none: this could run" in said
    assert "did you mean 'brevity'?" in run(
        installed, "super3", "rl", "-c", "tiny", "-d", rewards.replace("brevity", "brevty"), code=1
    )


@pytest.mark.slow
def test_the_reward_and_the_task_are_used(installed: Mapping[str, str]) -> None:
    run(installed, "super3", "rl", *short("rl"), "rewards=[{name: brevity, weight: 1.0}]")
    home = Path(installed["NEMOTRON_HOME"])
    (metrics,) = home.rglob("artifacts/super3-rl-model/*/metrics.jsonl")
    names = {name for entry in read_metrics(metrics) for name in entry} - {"step"}
    assert "rewards/brevity/mean" in names
    assert [name for name in names if not is_known(name)] == []
    tasks = ("data_prep.tasks=[capitals]", "evaluation.tasks=[capitals]", "run.missing_data=prepare")
    made = json.loads(run_json(installed, "super3", "eval", *short("eval"), *tasks, "--json"))
    results = json.loads((Path(made["path"]) / "results.json").read_text())
    assert {score["task"] for score in results["scores"]} == {"capitals"}


def test_the_output_of_its_library_is_read(installed: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "toy.log").write_text("toy 1 of 4: sadness 2.5\ntoy 2 of 4: sadness 0.5\n")
    rule = "{id: a, what: a, metric: loss, how: last, pass: {at_most: 1}, remedy: none}"
    (tmp_path / "mine.yaml").write_text(f"title: toys\nwhen: {{}}\nexpectations: [{rule}]\n")
    said = run(installed, "check", str(tmp_path / "toy.log"), "--expect", str(tmp_path / "mine.yaml"))
    assert "read: a box of toys" in said and "step 2 of 4" in said and "verdict: pass" in said
