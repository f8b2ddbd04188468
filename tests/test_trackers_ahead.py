"""Which tracker's package a machine does not have is known ahead; the result of every engine reaches the trackers."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml
from support import STAGES, call_here

from nemotron_app.main import main
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.housekeeping import run_folder
from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve
from nemotron_shared.config.training import TrackerSection
from nemotron_shared.config.validate import validate
from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.step.step import open_run, publish
from nemotron_shared.system.digest import json_digest
from nemotron_shared.tracking import trackers
from nemotron_shared.tracking.run import Run
from nemotron_shared.tracking.trackers import Ending

INSTALLED = {one.metadata["Name"]: one.version for one in distributions()}
MACHINE = {"python": "3.12", "processes": 1, "memory_gb": 64}


@pytest.mark.parametrize(
    ("setting", "package"),
    [("logger.wandb_project=mine", "wandb"), ("logger.mlflow_tracking_uri=http://there:5000", "mlflow-skinny")],
)
def test_a_package_that_is_missing_is_found_before_the_start(
    setting: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nemotron_app.launch.run_process", call_here)
    for known in ({}, {package: "1.0"}):
        others = {name: version for name, version in INSTALLED.items() if name not in {"wandb", "mlflow", package}}
        content = MACHINE | {"packages": others | known}
        (tmp_path / "machine.yaml").write_text(yaml.safe_dump(content))
        code = main(["super3", "sft", "-c", "tiny", "--dry-run", "--machine", "machine.yaml", setting])
        said = capsys.readouterr()
        text = said.out + said.err
        key = setting.partition("=")[0]
        assert (f"it needs the package '{package}'" in text) == (not known), text
        assert ("uv pip install --python" in text) == (not known)
        assert code == (0 if known else 1), text
        assert key in text


class Recorder:
    """A tracker that only remembers."""

    name = "W&B"

    def __init__(self, name: str, section: TrackerSection) -> None:
        self.told: list[tuple[str, ...]] = [("opened", name, str(section.wandb_project))]

    def figures(self, step: int, values: Mapping[str, float]) -> None:
        self.told.append(("figures", str(step)))

    def result(self, artifact: Artifact, inputs: Sequence[Artifact]) -> None:
        self.told.append(("result", artifact.reference, *(used.reference for used in inputs)))

    def end(self, ending: Ending) -> None:
        self.told.append(("end", ending))


ALL_ENGINES = [(stage, name) for stage in STAGES for name in import_module(f"stages.{stage}.engines").ENGINES.own]


def test_the_engines_are_those_that_we_know_of() -> None:
    assert len(ALL_ENGINES) == 12


@pytest.mark.parametrize(("stage", "engine"), ALL_ENGINES)
def test_the_result_of_every_engine_and_its_inputs_reach_the_tracker(
    stage: str, engine: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = import_module(f"stages.{stage}.train").STEP
    words = [f"engine={engine}", "logger.wandb_project=mine", f"run.publish_to={tmp_path / 'mine'}"]
    words += ["engine.deployment.type=vllm", "engine.container=mine:1"] if engine == "nemo_evaluator_launcher" else []
    values = resolve(compose(step.directory / "config", "tiny", words).tree, lambda role, name: f"{role} {name}")
    config = validate(step.schema, values, {})
    inputs = {
        "data": Store(made).resolve(f"{stage}-data"),
        "model": Store(made).resolve("pretrain"),
        "none": None,
    }
    name, store = step.makes.name("super3"), Store(tmp_path / "home")
    what = {"train.train_iters": 1}
    folder = run_folder(store, name, json_digest(what))
    planned = Task(config, inputs, Run(folder, name), store, name=name, values=values, what=what)

    def work(task: Task) -> Outcome:
        task.run.metrics.append(1, loss=1.0)
        (task.run.fresh_output() / "config.json").write_text("{}")
        return Outcome(task.run.output, metrics={"loss": 1.0})

    opened: list[Recorder] = []

    def open_one(kind: str, run: str, directory: Path, section: TrackerSection, settings: object) -> Recorder:
        opened.append(Recorder(run, section))
        return opened[-1]

    monkeypatch.setattr(trackers, "_open", open_one)
    with open_run(step, planned) as task:
        artifact = publish(step, task, work(task))
    assert (tmp_path / "mine").readlink() == artifact.path
    (tracker,) = opened
    by_itself = "wandb" in config.engines.load(engine).tracks_itself
    expected = [("opened", folder.name, "mine"), *([] if by_itself else [("figures", "1")])]
    used = (f"super3-{stage}-data:v1", "super3-pretrain-model:v1")
    assert tracker.told == [*expected, ("result", f"{name}:v1", *used), ("end", "finished")]
