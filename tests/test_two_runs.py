"""Two runs of one step: one of them makes the result, however close together they come."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from store_support import MODEL, publish
from support import short

from nemotron_shared.artifacts import Reference, Store
from nemotron_shared.artifacts.housekeeping import remove
from nemotron_shared.step import step
from nemotron_shared.step.arguments import Arguments
from nemotron_shared.step.start import Start, load
from nemotron_shared.step.step import make, plan, run_program
from stages.rl import train
from stages.rl.data_prep import STEP


def test_a_run_that_waited_for_the_lock_uses_what_was_made_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))
    arguments = Arguments("tiny", short("rl")[2:], False, False)
    made, was_there = make(load(STEP, arguments))
    assert (made.reference, was_there) == ("super3-rl-data:v1", False)

    def planned_before(start: Start) -> object:
        return replace(plan(start), finished=None)

    monkeypatch.setattr(step, "plan", planned_before)
    assert make(load(STEP, arguments)) == (made, True)


def test_a_start_keeps_its_model_before_it_has_looked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))
    publish(Store.open(), {"a": "1"})

    def removing(start: Start) -> None:
        remove(start.store, Reference(MODEL, 1))

    monkeypatch.setattr(step, "make", removing)
    assert run_program(train.STEP, ["-c", "tiny"]) == 2
    assert f"{MODEL}:v1 is needed by a step that is starting" in capsys.readouterr().err
    assert remove(Store.open(), Reference(MODEL, 1)) == []


def test_a_start_and_its_task_travel_to_the_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))
    start = load(STEP, Arguments("tiny", short("rl")[2:], False, False))
    assert pickle.loads(pickle.dumps(start)).step is STEP
    task = plan(start)
    there = pickle.loads(pickle.dumps(task))
    assert (there.fingerprint, there.run.directory) == (task.fingerprint, task.run.directory)
