"""What a training leaves behind when it has published: its last state, whenever a kill came, and nothing else."""

import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from store_support import MODEL, publish

from nemotron_shared.artifacts import Artifact, Reference, Store
from nemotron_shared.artifacts.housekeeping import INPUTS, state_folder
from nemotron_shared.engine.checkpoints import Layout, mark_complete
from nemotron_shared.engine.spec import LENGTH, Task
from nemotron_shared.step.attempts import finish, finish_again
from nemotron_shared.step.records import new_segment, segments_of_result
from nemotron_shared.system.atomic import write_text
from nemotron_shared.system.digest import file_digest, tree_files
from nemotron_shared.system.lock import locked
from nemotron_shared.tracking.run import LOCK_NAME, Run
from nemotron_shared.tracking.segments import SEGMENTS, write_segments

STEPS = 6
IDENTITY = {
    "what": {LENGTH: STEPS},
    "how": {"train.micro_batch_size": 4},
    "modules": {"stages.sft.train": "5e88"},
}


class Killed(BaseException):
    """What nothing can catch."""


def published(home: Path) -> tuple[Task[Any], Artifact, Run]:
    """A training of two checkpoints that has just published: its task, its artifact, and its run."""
    store = Store(home)
    run = Run(home / "runs" / f"{MODEL}-1f0c", MODEL)
    for step in (STEPS - 2, STEPS):
        folder = run.checkpoints / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "optimizer.pt").write_text(f"after {step}")
        mark_complete(folder, Layout(), world_size=1)
    config: Any = None
    task = Task(config, {}, run, store, name=MODEL, **IDENTITY)
    write_segments(run.directory, [new_segment(task)])
    write_text(run.directory / INPUTS, "[]")
    artifact = publish(store, {"model.safetensors": "w"}, segments=segments_of_result(run.directory, 41.23))
    return task, artifact, run


def left(task: Task[Any]) -> dict[str, str]:
    """Digests of all that lies in the run's folder and in that of its state."""
    folders = [task.run.directory, state_folder(task.store, Reference(MODEL, 1))]
    files = {f"{path.relative_to(task.store.home)}": path for folder in folders for path in tree_files(folder)}
    undated = {name: path for name, path in files.items() if path.name not in (SEGMENTS, LOCK_NAME)}
    return {name: file_digest(path) for name, path in undated.items()} | dict.fromkeys(files.keys() - undated, "")


def die_before(number: int, patch: pytest.MonkeyPatch) -> None:
    """Let the process end before its call `number` of those that change a folder."""
    calls = count()

    def dying(change: Any) -> Any:
        def changed(*arguments: Any, **more: Any) -> Any:
            if next(calls) == number:
                raise Killed
            return change(*arguments, **more)

        return changed

    for owner, names in ((shutil, ("rmtree", "copyfile")), (Path, ("rename", "mkdir", "unlink"))):
        for name in names:
            patch.setattr(owner, name, dying(getattr(owner, name)))


@pytest.mark.parametrize("keep", [True, False])
def test_a_kill_at_any_moment_is_made_good_by_the_next_start(tmp_path: Path, keep: bool) -> None:
    task, artifact, run = published(tmp_path / "whole")
    finish(task, artifact, keep=keep)
    wanted = left(task)
    kept = [name for name in wanted if name.startswith("states/")]
    assert any("checkpoint-6" in name for name in kept) is keep and not any("checkpoint-4" in name for name in kept)
    assert not [name for name in wanted if name.startswith("runs/")]

    for moment in count():
        task, artifact, run = published(tmp_path / f"killed-{moment}")
        with pytest.MonkeyPatch.context() as patch:
            die_before(moment, patch)
            try:
                finish(task, artifact, keep=keep)
                break
            except Killed:
                pass
        finish_again(task, task.store.load(MODEL, 1), keep=keep)
        (run.directory / LOCK_NAME).unlink(missing_ok=True)
        assert left(task) == wanted, moment
    assert moment >= (8 if keep else 3)


def test_a_run_that_makes_the_artifact_anew_keeps_what_it_has(tmp_path: Path) -> None:
    task, artifact, run = published(tmp_path)
    anew = new_segment(task)
    write_segments(run.directory, [replace(anew, began="2026-01-31T12:00:00+00:00")])
    before = left(task)
    finish_again(task, artifact, keep=True)
    assert {name: digest for name, digest in left(task).items() if LOCK_NAME not in name} == before


def test_a_run_that_is_finishing_is_left_to_it(tmp_path: Path) -> None:
    task, artifact, run = published(tmp_path)
    with locked(run.directory / LOCK_NAME, wait=False):
        finish_again(task, artifact, keep=True)
    assert run.checkpoints.is_dir()


def test_damaged_attempts_leave_a_finished_result_usable(tmp_path: Path) -> None:
    task, artifact, run = published(tmp_path)
    (run.directory / SEGMENTS).write_text("[{")
    finish_again(task, artifact, keep=True)
    assert run.checkpoints.is_dir()


def test_attempts_that_a_manifest_does_not_tell_are_nobodys(tmp_path: Path) -> None:
    task, artifact, run = published(tmp_path)
    artifact.manifest.segments[:] = [1]
    finish_again(task, artifact, keep=True)
    assert run.checkpoints.is_dir()
