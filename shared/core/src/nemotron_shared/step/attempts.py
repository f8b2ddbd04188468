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
from pathlib import Path
from typing import Any

import yaml

from nemotron_shared.artifacts import Artifact, Reference
from nemotron_shared.artifacts.housekeeping import INPUTS, state_folder
from nemotron_shared.engine import checkpoints
from nemotron_shared.step.plan import STATE, Extension, Plan
from nemotron_shared.step.records import (
    LENGTH,
    RULE,
    WHAT,
    changed_modules,
    changes,
    differences,
    listed,
    made,
    new_segment,
    what_it_was,
)
from nemotron_shared.system.atomic import link_or_copy, write_json, write_text
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.lock import locked
from nemotron_shared.system.redaction import redact_values, with_references
from nemotron_shared.tracking.metrics import FILE as METRICS
from nemotron_shared.tracking.run import LOCK_NAME, Run
from nemotron_shared.tracking.segments import SEGMENTS, read_segments, write_segments


def begin(plan: Plan, run: Run) -> None:
    """Decide what this attempt starts from, report it in one line, and record it in the run's folder.

    Raises:
        UserError: an unfinished run differs, and `run.on_change` is `refuse`.
    """
    segment = new_segment(plan.identity)
    before = [] if plan.config.run.force else read_segments(run.directory)
    why_new = None if before or plan.config.run.force else began_otherwise(plan) or _why_new(plan, run.directory)
    if not before:
        run.forget()  # logs of a finished run, and possibly folders of another program
    if before:
        found = changes(before[-1], segment)
        _refuse_where_asked(plan, found)
        if found and plan.config.run.on_change == "restart":
            run.say(f"starting over (run.on_change=restart); changed since the unfinished run: {listed(found)}")
            run.forget()
            before = []
        elif found:
            run.say(f"going on with an unfinished run; since then: {listed(found)}")
    elif plan.extends is not None:
        steps = f"from step {plan.extends.step} to {plan.identity.what[LENGTH]}"
        run.say(f"extending {plan.extends.artifact.reference} {steps}; the learning rate follows the longer schedule")
        before = _take_over(plan.extends, run)
    elif why_new is not None:
        run.say(why_new)
    shown = yaml.safe_dump(with_references(plan.movable_values()), sort_keys=False, allow_unicode=True)
    write_text(run.directory / "config.yaml", shown)
    what = {"what": redact_values(plan.identity.what), "modules": plan.identity.modules}
    if plan.extends is not None:
        what |= {"extends": {"reference": plan.extends.artifact.reference, "step": plan.extends.step}}
    write_json(run.directory / WHAT, what)
    write_segments(run.directory, [*before, segment])
    # A cleanup must not remove these until this run has published.
    write_json(run.directory / INPUTS, [parent.reference for parent in plan.parents()])


def has_begun(plan: Plan) -> bool:
    """Whether an unfinished attempt at this result is there, which this start would continue."""
    return not plan.config.run.force and bool(read_segments(plan.run_directory))


def require_resumable(plan: Plan) -> None:
    """Refuse what a start would refuse if it resumed an unfinished run, without changing anything.

    Raises:
        UserError: its records or all of its checkpoints are damaged, or it differs, also by a rule of our code, and
            `run.on_change` is `refuse`.
    """
    before = [] if plan.config.run.force else read_segments(plan.run_directory)
    if not before:
        began_otherwise(plan)
        return
    found = changes(before[-1], new_segment(plan.identity))
    _refuse_where_asked(plan, found)
    if not found or plan.config.run.on_change != "restart":
        checkpoints.require_one_left(plan.run_directory / "checkpoints")


def _refuse_where_asked(plan: Plan, found: list[str]) -> None:
    if found and plan.config.run.on_change == "refuse":
        raise UserError(
            f"{plan.run_directory}: an unfinished run, and since then: {listed(found)}",
            "set run.on_change=continue to continue it, or run.on_change=restart to start over",
        )


def began_otherwise(plan: Plan) -> str | None:
    """A notice if an unfinished run differs in a rule of our code alone: this version cannot continue it.

    Raises:
        UserError: there is one, and `run.on_change` is `refuse`.
    """
    now = redact_values(plan.identity.what)
    if plan.config.run.force or not any(key.startswith(RULE) for key in now):
        return None
    for folder in sorted(plan.run_directory.parent.glob(f"{plan.name}-*")):
        recorded = what_it_was(folder / WHAT) if (folder / INPUTS).is_file() else None
        found = differences(recorded["what"], now) if recorded else []
        if not found or not all(one.startswith(RULE) for one in found):
            continue
        rules = listed([one.removeprefix(RULE) for one in found])
        how = "only the version that began it can continue it (docs/upgrading.md)"
        if plan.config.run.on_change == "refuse":
            what = f"{folder}: an unfinished run that began under another rule, {rules}: {how}"
            raise UserError(what, "use that version, or set run.on_change=continue for a new run")
        return f"a new run, because the unfinished {folder.name} began under another rule, {rules}: {how}"
    return None


def _why_new(plan: Plan, directory: Path) -> str | None:
    """How this run differs from the one in its own folder, else from the newest for the same artifact name.

    A run's folder is named after its result, so the run found there differs in its code alone.
    """
    others = (
        [directory / WHAT] if (directory / WHAT).is_file() else list(directory.parent.glob(f"{plan.name}-*/{WHAT}"))
    )
    if not others:
        return None
    newest = max(others, key=lambda path: path.stat().st_mtime)
    other, before = newest.parent, what_it_was(newest)
    if before is None:
        return None
    state = "unfinished" if (other / INPUTS).is_file() else "finished"  # removed when the result is published
    if found := differences(before["what"], redact_values(plan.identity.what)):
        return f"a new run, not the {state} {other.name}: {listed(found)}"
    if found := changed_modules(before["modules"], plan.identity.modules):
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


def finish(plan: Plan, artifact: Artifact, run: Run, *, keep: bool) -> None:
    """Remove everything a later attempt could resume from by mistake. Safe to repeat after a kill.

    Args:
        keep: move the last checkpoint to where a longer training will look for it.
    """
    if keep and run.checkpoints.is_dir():
        folder = state_folder(plan.store, Reference(artifact.manifest.name, artifact.manifest.version))
        shutil.rmtree(folder, ignore_errors=True)  # of a version deleted by hand, or incomplete
        folder.mkdir(parents=True)
        shutil.copyfile(run.directory / SEGMENTS, folder / SEGMENTS)
        write_json(folder / STATE, {"series": plan.identity.series, "step": plan.identity.what[LENGTH]})
        checkpoints.prune(run.checkpoints, checkpoints.Layout(), keep=1, keep_best=False)
        run.checkpoints.rename(folder / "checkpoints")  # last: only then can a training extend this one
    shutil.rmtree(run.checkpoints, ignore_errors=True)
    for name in (INPUTS, SEGMENTS):
        (run.directory / name).unlink(missing_ok=True)


def finish_again(plan: Plan, artifact: Artifact, *, keep: bool) -> None:
    """Complete `finish` for the run that made an artifact, in case it was killed right after publishing."""
    directory = plan.run_directory
    if not (directory / SEGMENTS).is_file():
        return
    # A process that holds the lock will finish it; without permissions, the result can still be used.
    with suppress(UserError, OSError), locked(directory / LOCK_NAME, wait=False):
        # Otherwise the folder belongs to a later run, started to make the artifact again.
        if made(artifact.manifest, directory):
            finish(plan, artifact, Run(directory, plan.name), keep=keep)
