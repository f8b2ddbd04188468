"""Start an attempt at a result: from scratch, from an unfinished attempt, or from the state of a shorter training.

[super3-sft-model] going on with an unfinished run; since then: train.micro_batch_size 8 -> 4
[super3-sft-model] a new run, not the unfinished super3-sft-model-1f0c...: optimizer.lr 0.002 -> 0.001
[super3-sft-model] a new run, because the unfinished super3-sft-model-1f0c... began under another rule, ...
[super3-sft-model] made again, because it differs from the finished super3-sft-model-1f0c...: code of stages.sft.packs
[super3-sft-model] extending super3-sft-model:v1 from step 300 to 600
"""

import shutil
from contextlib import suppress
from dataclasses import replace
from typing import Any

import yaml

from nemotron_shared.artifacts import Artifact, Reference
from nemotron_shared.artifacts.housekeeping import INPUTS, state_folder
from nemotron_shared.engine import checkpoints
from nemotron_shared.engine.spec import LENGTH, Extension, Task
from nemotron_shared.step.plan import STATE, identify, movable_values, require_intact_result
from nemotron_shared.step.records import (
    RULE,
    changed_modules,
    changes,
    differences,
    listed,
    made,
    new_segment,
    what_it_was,
)
from nemotron_shared.step.start import Start
from nemotron_shared.system.atomic import link_or_copy, write_json, write_text
from nemotron_shared.system.errors import UserError, note, of_level
from nemotron_shared.system.lock import locked
from nemotron_shared.system.redaction import redact_values, with_references
from nemotron_shared.tracking.metrics import FILE as METRICS
from nemotron_shared.tracking.run import LOCK_NAME, WHAT, Run
from nemotron_shared.tracking.segments import SEGMENTS, read_segments, write_segments

ABOUT = ("data_prep.source", "input model", "input data")
"""Keys by which two runs are about the same. A finished run about something else is nothing to compare with."""


def with_result(start: Start[Any]) -> Start[Any]:
    """The start of a dry run with what a result means for it that may be there, complete or damaged, or unfinished."""
    known = start.store.versions(start.name) or any((start.store.home / "runs").glob(f"{start.name}-*"))
    if not known or not start.machine.sees_files:
        return start
    try:
        task = identify(start)
        require_intact_result(task, start)
        if task.finished is not None:  # it would be reused, and nothing is lacking
            return replace(start, findings=tuple(of_level("note", start.findings)))
        require_resumable(task)
        another_rule = began_otherwise(task)
    except UserError as error:
        return replace(start, findings=(error.finding, *start.findings))
    return replace(start, findings=(*start.findings, note(another_rule))) if another_rule else start


def begin(task: Task[Any]) -> None:
    """Decide what this attempt starts from, report it in one line, and record it in the run's folder.

    Raises:
        UserError: an unfinished run differs, and `run.on_change` is `refuse`.
    """
    run, segment = task.run, new_segment(task)
    before = [] if task.config.run.force else read_segments(run.directory)
    why_new = None if before or task.config.run.force else began_otherwise(task) or _why_new(task)
    if not before:
        run.forget()  # logs of a finished run, and possibly folders of another program
    if before:
        found = changes(before[-1], segment)
        _refuse_where_asked(task, found)
        if found and task.config.run.on_change == "restart":
            run.say(f"starting over (run.on_change=restart); changed since the unfinished run: {listed(found)}")
            run.forget()
            before = []
        elif found:
            run.say(f"going on with an unfinished run; since then: {listed(found)}")
    elif task.extends is not None:
        steps = f"from step {task.extends.step} to {task.what[LENGTH]}"
        run.say(f"extending {task.extends.artifact.reference} {steps}; the learning rate follows the longer schedule")
        before = _take_over(task.extends, run)
    elif why_new is not None:
        run.say(why_new)
    shown = yaml.safe_dump(with_references(movable_values(task)), sort_keys=False, allow_unicode=True)
    write_text(run.directory / "config.yaml", shown)
    what: dict[str, Any] = {"what": redact_values(task.what), "modules": task.modules}
    if task.extends is not None:
        what |= {"extends": {"reference": task.extends.artifact.reference, "step": task.extends.step}}
    write_json(run.directory / WHAT, what)
    write_segments(run.directory, [*before, segment])
    # A cleanup must not remove these until this run has published.
    write_json(run.directory / INPUTS, [parent.reference for parent in task.parents()])


def has_begun(task: Task[Any]) -> bool:
    """Whether an unfinished attempt at this result is there, which this start would continue."""
    return not task.config.run.force and bool(read_segments(task.run.directory))


def require_resumable(task: Task[Any]) -> None:
    """Refuse what a start would refuse if it resumed an unfinished run, without changing anything.

    Raises:
        UserError: its records or all of its checkpoints are damaged, or it differs, also by a rule of our code, and
            `run.on_change` is `refuse`.
    """
    before = [] if task.config.run.force else read_segments(task.run.directory)
    if not before:
        began_otherwise(task)
        return
    found = changes(before[-1], new_segment(task))
    _refuse_where_asked(task, found)
    if not found or task.config.run.on_change != "restart":
        checkpoints.require_one_left(task.run.directory / "checkpoints")


def _refuse_where_asked(task: Task[Any], found: list[str]) -> None:
    if found and task.config.run.on_change == "refuse":
        raise UserError(
            f"{task.run.directory}: an unfinished run, and since then: {listed(found)}",
            "set run.on_change=continue to continue it, or run.on_change=restart to start over",
        )


def began_otherwise(task: Task[Any]) -> str | None:
    """A notice if an unfinished run differs in a rule of our code alone: this version cannot continue it.

    Raises:
        UserError: there is one, and `run.on_change` is `refuse`.
    """
    now = redact_values(task.what)
    if task.config.run.force or not any(key.startswith(RULE) for key in now):
        return None
    for folder in sorted(task.run.directory.parent.glob(f"{task.name}-*")):
        recorded = what_it_was(folder / WHAT) if (folder / INPUTS).is_file() else None
        found = differences(recorded["what"], now) if recorded else []
        if not found or not all(one.startswith(RULE) for one in found):
            continue
        rules = listed([one.removeprefix(RULE) for one in found])
        how = "only the version that began it can continue it (docs/upgrading.md)"
        if task.config.run.on_change == "refuse":
            what = f"{folder}: an unfinished run that began under another rule, {rules}: {how}"
            raise UserError(what, "use that version, or set run.on_change=continue for a new run")
        return f"a new run, because the unfinished {folder.name} began under another rule, {rules}: {how}"
    return None


def _why_new(task: Task[Any]) -> str | None:
    """How this run differs from the one in its own folder, else from the newest for the same artifact name.

    A run's folder is named after its result, so the run found there differs in its code alone.
    """
    directory = task.run.directory
    others = (
        [directory / WHAT] if (directory / WHAT).is_file() else list(directory.parent.glob(f"{task.name}-*/{WHAT}"))
    )
    if not others:
        return None
    newest = max(others, key=lambda path: path.stat().st_mtime)
    other, before = newest.parent, what_it_was(newest)
    if before is None:
        return None
    state = "unfinished" if (other / INPUTS).is_file() else "finished"  # removed when the result is published
    if state == "finished" and any(before["what"].get(key) != task.what.get(key) for key in ABOUT):
        return None
    if found := differences(before["what"], redact_values(task.what)):
        return f"a new run, not the {state} {other.name}: {listed(found)}"
    if found := changed_modules(before["modules"], task.modules):
        return f"made again, because it differs from the {state} {other.name}: {found[0]}"
    return None


def _take_over(extends: Extension, run: Run) -> list[Any]:
    """Put the shorter training's state and metrics in place, as if this run were resuming."""
    shutil.rmtree(run.checkpoints, ignore_errors=True)
    waiting = run.directory / ".tmp-checkpoints"
    shutil.rmtree(waiting, ignore_errors=True)
    try:
        shutil.copytree(extends.folder / "checkpoints", waiting, copy_function=link_or_copy)
    except shutil.Error as error:  # one entry per file that could not be copied
        file, _, why = error.args[0][0]
        raise UserError(f"{file}: cannot be copied: {why}", "remove it, or start over: --force") from error
    waiting.rename(run.checkpoints)
    if (extends.artifact.path / METRICS).is_file():
        shutil.copyfile(extends.artifact.path / METRICS, run.metrics.path)
    # their learning rate followed a shorter schedule: keep them distinct from later segments
    shorter = {LENGTH: extends.step}
    return [replace(one, how=shorter | one.how) for one in read_segments(extends.folder)]


def finish(task: Task[Any], artifact: Artifact, *, keep: bool) -> None:
    """Remove everything a later attempt could resume from by mistake. Safe to repeat after a kill.

    Args:
        keep: move the last checkpoint to where a longer training will look for it.
    """
    run = task.run
    if keep and run.checkpoints.is_dir():
        folder = state_folder(task.store, Reference(artifact.manifest.name, artifact.manifest.version))
        shutil.rmtree(folder, ignore_errors=True)  # of a version deleted by hand, or incomplete
        folder.mkdir(parents=True)
        shutil.copyfile(run.directory / SEGMENTS, folder / SEGMENTS)
        write_json(folder / STATE, {"series": task.series, "step": task.what[LENGTH]})
        checkpoints.prune(run.checkpoints, checkpoints.Layout(), keep=1, keep_best=False)
        run.checkpoints.rename(folder / "checkpoints")  # last: only then can a training extend this one
    shutil.rmtree(run.checkpoints, ignore_errors=True)
    for name in (INPUTS, SEGMENTS):
        (run.directory / name).unlink(missing_ok=True)


def finish_again(task: Task[Any], artifact: Artifact, *, keep: bool) -> None:
    """Complete `finish` for the run that made an artifact, in case it was killed right after publishing."""
    directory = task.run.directory
    if not (directory / SEGMENTS).is_file():
        return
    # A process that holds the lock will finish it; without permissions, the result can still be used.
    with suppress(UserError, OSError), locked(directory / LOCK_NAME, wait=False):
        # Otherwise the folder belongs to a later run, started to make the artifact again.
        if made(artifact.manifest, directory):
            finish(task, artifact, keep=keep)
