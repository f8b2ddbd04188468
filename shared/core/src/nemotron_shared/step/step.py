"""The statements of every step, from the command line to the published artifact.

    if __name__ == "__main__":
        sys.exit(run_program(STEP))           # the end of each script

`make` is a start: plan, open the run, let the work make the result, publish. A dry run shows what it would do.
"""

import gc
import os
import shutil
import signal
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from nemotron_shared.artifacts import Artifact
from nemotron_shared.artifacts.starting import inputs_kept, named_inputs
from nemotron_shared.config.training import TrackerSection
from nemotron_shared.engine.engine import engine_of, refuse
from nemotron_shared.engine.spec import Outcome, Step, Task
from nemotron_shared.step.arguments import parse_arguments
from nemotron_shared.step.attempts import begin, finish, finish_again, has_begun, with_result
from nemotron_shared.step.dry_run import CANNOT_RUN, Preview, preview, show
from nemotron_shared.step.places import show_result, show_run
from nemotron_shared.step.plan import identify, made_meanwhile, require_intact_result
from nemotron_shared.step.preflight import after, complete, preflight, to_rehearse
from nemotron_shared.step.records import ask_git, processes_of, producer, promises_bytes, segments_of_result
from nemotron_shared.step.rehearsal import is_rehearsed, rehearse, rehearse_apart
from nemotron_shared.step.start import Start, load, of_step
from nemotron_shared.system import distributed
from nemotron_shared.system.console import from_here, say, tell_json
from nemotron_shared.system.errors import Finding, note
from nemotron_shared.system.process import end_with_parent, heed_signals, use_no_code_of_this_folder
from nemotron_shared.system.program import exit_code_of
from nemotron_shared.system.stop import STOPPED_EXIT_CODE, Stopped, end_on_sigterm, ignore_echoes
from nemotron_shared.tracking.progress import heartbeat
from nemotron_shared.tracking.run import locked_run
from nemotron_shared.tracking.trackers import tracked


def run_program(step: Step, words: Sequence[str] | None = None) -> int:
    """Run a step from a command line, and return the exit code.

    Args:
        words: of the command line; None for those of this process, which then ends after this.
    """
    if words is None:
        use_no_code_of_this_folder()
        end_on_sigterm()
        if "TORCHELASTIC_RUN_ID" in os.environ:  # a rank: a killed torchrun would leave it behind
            end_with_parent(os.getppid(), signal.SIGTERM)
    # The script's folder is first in sys.path, where `evaluate.py` would hide the library of that name.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != step.directory]
    os.environ.setdefault("TQDM_DISABLE", "1")  # libraries' progress bars would overwrite ours
    code = exit_code_of(lambda: _run(step, words))
    if words is None:
        ignore_echoes()
        gc.freeze()  # at exit: a last garbage collection over everything imported takes 0.1 s
    return code


def _run(step: Step, words: Sequence[str] | None) -> int:
    if words is None:
        heed_signals()
    arguments = parse_arguments(f"{step.stage}/{step.verb}.py", step.description, words)
    if arguments.dry_run and distributed.rank() != 0:
        return 0
    if arguments.rehearse:
        start, prepare = to_rehearse(step, arguments), step.prepare
        preparation = preflight(of_step(start, prepare)) if prepare is not None else None
        say(f"[{step.stage}] {rehearse(start, preparation, make)}")
        return 0
    if arguments.dry_run:
        shown = look_at(load(step, arguments))
        show(shown, as_json=arguments.json)
        return CANNOT_RUN if shown.problems else 0
    keeping = ExitStack()
    try:
        artifact, reused = make(distributed.on_rank_zero(lambda: _kept(load(step, arguments), keeping)))
    except Stopped as stopped:
        say(str(stopped))
        return STOPPED_EXIT_CODE
    finally:
        keeping.close()
        distributed.leave()
    if arguments.json and distributed.rank() == 0:
        tell_json({"artifact": artifact.reference, "path": str(artifact.path), "reused": reused}, indent=None)
    return 0


def look_at(start: Start[Any]) -> Preview:
    """What a dry run shows: everything that a start would meet, found without writing."""
    start = preflight(start)
    if not start.problems and not start.prepares and start.is_decided and not start.arguments.config_alone:
        start = with_result(start)
    if not start.refused and start.machine.sees_files and is_rehearsed(start):
        start = after(start, _of_rehearsal)
    return preview(start)


def _of_rehearsal(start: Start[Any]) -> Iterator[Finding]:
    """What one step of this training fails with, or a note. A run that has begun is not rehearsed."""
    if start.prepares or not start.is_decided or not has_begun(identify(start)):
        yield note(rehearse_apart(start))


def _kept(start: Start[Any], keeping: ExitStack) -> Start[Any]:
    """The same start, with its inputs kept from being removed; `nemotron` keeps those of its steps itself."""
    keeping.enter_context(inputs_kept(start.store, named_inputs(start.store, start.run.model_dump())))
    return start


def make(start: Start[Any]) -> tuple[Artifact, bool]:
    """Make a step's artifact, or use the one that the same settings, inputs and code have made before.

    Returns:
        The artifact, and whether it was there before.
    """
    step, task = start.step, plan(start)
    if task.finished is not None:
        return reuse(step, task, task.finished), True
    with open_run(step, task) as opened:
        if opened.finished is not None:
            return opened.finished, True
        return publish(step, opened, step.work(opened)), False


def plan(start: Start[Any]) -> Task[Any]:
    """Check everything, prepare missing data if the config allows it, and look for a finished result.

    Raises:
        UserError: everything that prevents the step from running, before any work is done.
    """
    return distributed.on_rank_zero(lambda: _plan(start))


def _plan(start: Start[Any]) -> Task[Any]:
    start, rehearsed = preflight(start), False
    if start.prepares and start.step.prepare is not None:
        refuse(start.refused)
        rehearsed = _rehearse(start)
        say(f"{start.prepares}: preparing it first")
        data, _ = make(of_step(start, start.step.prepare))
        start = complete(start, data)
    start, task = _decided(start)
    if task.finished is None and not rehearsed and not has_begun(task):
        _rehearse(start)
    return task


def _rehearse(start: Start[Any]) -> bool:
    """Rehearse a training from someone else's model; returns whether it was needed."""
    if not is_rehearsed(start):
        return False
    say(f"[{start.step.stage}] {rehearse_apart(start)}")
    return True


def _decided(start: Start[Any]) -> tuple[Start[Any], Task[Any]]:
    """The task, once everything is checked and models from elsewhere are imported; and the start with those."""
    for line in start.notes:
        say(line)
    if start.problems:
        refuse(start.refused)
    if start.is_decided:
        task = identify(start)
        if task.finished is not None:  # an existing result can be used on any machine, without its inputs
            require_intact_result(task, start)
            return start, task
        refuse(start.lacking)
        if not start.imports:
            return start, task
    for found in start.imports:
        assert found.bring_in is not None
        found.bring_in()
    start = complete(start)
    refuse(start.refused)
    task = identify(start)
    require_intact_result(task, start)
    return start, task


def reuse(step: Step, task: Task[Any], finished: Artifact) -> Artifact:
    """Use the finished result, and complete what the run that made it may have left undone."""
    made, again = _in_other_processes(finished) if step.trains else ("", "")
    say(f"[{task.name}] unchanged: using {finished.reference}{made} (--force makes it again{again})")
    distributed.on_rank_zero(lambda: task.store.use_again(finished))
    distributed.on_rank_zero(lambda: finish_again(task, finished, keep=step.keeps_state(task.config)))
    _link_result(step, task, finished)
    return finished


def _in_other_processes(finished: Artifact) -> tuple[str, str]:
    """Words about a result of another number of processes, which is the same result; empty for the same number.

    A user who types `torchrun --nproc-per-node=8` after `python train.py` may expect a training.
    """
    before, now = processes_of(finished.manifest), distributed.world_size()
    if before in (now, None):
        return "", ""
    return f", made by {before} process{'es' if before != 1 else ''}", f" by {now}"


@contextmanager
def open_run(step: Step, task: Task[Any]) -> Generator[Task[Any]]:
    """Lock the run's folder, decide what this attempt starts from, and open the experiment trackers.

    `finished` is the result if another run published it before this one got the lock; then there is nothing to do.
    """
    with locked_run(task.run.directory, task.name, task.fingerprint) as run:
        finished = distributed.on_rank_zero(lambda: made_meanwhile(task))
        task = replace(task, run=run, finished=finished)
        if finished is not None:
            run.say(f"another run has just made {finished.reference}: using it")
            _link_result(step, task, finished)
            yield task
            return
        distributed.on_rank_zero(lambda: begin(task))
        if distributed.rank() == 0:
            ask_git(step.directory)
        if not step.trains:  # data preparation reports its own progress, and forks its workers: unsafe with threads
            yield task
            return
        distributed.on_rank_zero(lambda: show_run(task))
        with heartbeat(task.name), _trackers(task):
            yield task


@contextmanager
def _trackers(task: Task[Any]) -> Generator[None]:
    """Open the config's experiment trackers, which receive every line of metrics.jsonl, and the result."""
    run, section = task.run, getattr(task.config, "logger", None)
    if not isinstance(section, TrackerSection):
        yield
        return
    itself = engine_of(task.config).tracks_itself
    with tracked(run.directory.name, run.directory, section, {**task.what, **task.how}, itself) as trackers:
        run.metrics.mirror, run.mirror_result = trackers.figures, trackers.result
        run.completions.mirror = trackers.completions
        yield


def publish(step: Step, task: Task[Any], outcome: Outcome) -> Artifact:
    """Publish what the work made as the next version of the artifact, and tell the trackers."""
    distributed.barrier()
    artifact = distributed.on_rank_zero(lambda: _publish(step, task, outcome))
    _link_result(step, task, artifact)
    task.run.mirror_result(artifact, [found for found in task.inputs.values() if found is not None])
    return artifact


def _publish(step: Step, task: Task[Any], outcome: Outcome) -> Artifact:
    run = task.run
    if run.metrics.path.exists():
        shutil.copyfile(run.metrics.path, outcome.directory / "metrics.jsonl")
    artifact = task.store.publish(
        outcome.directory,
        name=task.name,
        type=step.type_made(task.config),
        fingerprint=task.fingerprint,
        producer=producer(step, task.result, task.code, task.command),
        parents=task.parents(),
        sources=task.all_sources(),
        metadata=dict(outcome.metadata),
        metrics=dict(outcome.metrics),
        digests=outcome.digests,
        segments=segments_of_result(run.directory, time.monotonic() - run.began),
    )
    if (count := len(artifact.manifest.segments)) > 1:
        doubt = ": its bytes may differ from those of an uninterrupted run"
        run.say(f"made in {count} segments{'' if promises_bytes(artifact.manifest) else doubt}")
    finish(task, artifact, keep=step.keeps_state(task.config))
    run.say(f"published {artifact.reference} ({from_here(artifact.path)})")
    return artifact


def _link_result(step: Step, task: Task[Any], artifact: Artifact) -> None:
    """Create the links to the result that the config asks for. Data prepared for a training has none."""
    if step.trains:
        distributed.on_rank_zero(lambda: show_result(task, artifact))
