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
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from nemotron_shared.artifacts import Artifact
from nemotron_shared.artifacts.starting import inputs_kept, named_inputs
from nemotron_shared.config.training import TrackerSection
from nemotron_shared.engine.engine import engine_of, refuse
from nemotron_shared.engine.spec import Made, Outcome, Step
from nemotron_shared.step.arguments import parse_arguments
from nemotron_shared.step.attempts import begin, finish, finish_again, has_begun
from nemotron_shared.step.dry_run import CANNOT_RUN, preview, show
from nemotron_shared.step.inputs import use_prepared
from nemotron_shared.step.places import show_result, show_run
from nemotron_shared.step.plan import Plan, identify, made_meanwhile, require_usable
from nemotron_shared.step.preflight import complete, preflight
from nemotron_shared.step.records import ask_git, producer, promises_bytes, segments_of_result
from nemotron_shared.step.rehearsal import is_rehearsed, rehearse, rehearse_apart
from nemotron_shared.step.start import Preflight, Start, load
from nemotron_shared.system import distributed
from nemotron_shared.system.console import say, tell_json
from nemotron_shared.system.errors import exit_code_of
from nemotron_shared.system.process import end_with_parent, heed_signals, use_no_code_of_this_folder
from nemotron_shared.system.stop import STOPPED_EXIT_CODE, Stopped, end_on_sigterm, ignore_echoes
from nemotron_shared.tracking.progress import heartbeat
from nemotron_shared.tracking.run import Run, locked_run
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
        say(f"[{step.stage}] {rehearse(step, make, arguments)}")
        return 0
    if arguments.dry_run:
        shown = preview(step, load(step, arguments))
        show(shown, as_json=arguments.json)
        return CANNOT_RUN if shown.problems else 0
    keeping = ExitStack()
    try:
        made = make(step, distributed.on_rank_zero(lambda: _kept(load(step, arguments), keeping)))
    except Stopped as stopped:
        say(str(stopped))
        return STOPPED_EXIT_CODE
    finally:
        keeping.close()
        distributed.leave()
    if arguments.json and distributed.rank() == 0:
        artifact = made.artifact
        tell_json({"artifact": artifact.reference, "path": str(artifact.path), "reused": made.reused}, indent=None)
    return 0


def _kept(start: Start, keeping: ExitStack) -> Start:
    """The same start, with its inputs kept from being removed; `nemotron` keeps those of its steps itself."""
    keeping.enter_context(inputs_kept(start.store, named_inputs(start.store, start.run.model_dump())))
    return start


def make(step: Step, start: Start) -> Made:
    """Make a step's artifact, or use the one that the same settings, inputs and code have made before."""
    plan = plan_run(step, start)
    if plan.finished is not None:
        return reuse(step, plan, plan.finished)
    with open_run(step, plan) as run:
        if run.finished is not None:
            return Made(run.finished, reused=True)
        return publish(step, plan, run, step.work(plan.task(run)))


def plan_run(step: Step, start: Start) -> Plan[Any]:
    """Check everything, prepare missing data if the config allows it, and look for a finished result.

    Raises:
        UserError: everything that prevents the step from running, before any work is done.
    """
    return distributed.on_rank_zero(lambda: _plan_run(step, start))


def _plan_run(step: Step, start: Start) -> Plan[Any]:
    checked = preflight(step, start)
    rehearsed = False
    if checked.prepares and step.prepare is not None:
        refuse(checked.problems + checked.lacking)
        rehearsed = _rehearse(checked)
        say(f"{checked.prepares}: preparing it first")
        use_prepared(checked, make(step.prepare, start).artifact)
        complete(checked)
    plan = _decided_plan(checked)
    if plan.finished is None and not rehearsed and not has_begun(plan):
        _rehearse(checked)
    return plan


def _rehearse(checked: Preflight[Any]) -> bool:
    """Rehearse a training from someone else's model; returns whether it was needed."""
    if not is_rehearsed(checked):
        return False
    say(f"[{checked.step.stage}] {rehearse_apart(checked)}")
    return True


def _decided_plan(checked: Preflight[Any]) -> Plan[Any]:
    """The plan, once everything is checked, and models from elsewhere are imported."""
    for note in checked.notes:
        say(note)
    if checked.problems:
        refuse(checked.problems + checked.lacking)
    if checked.is_decided:
        plan = identify(checked)
        if plan.finished is not None:  # an existing result can be used on any machine, without its inputs
            require_usable(plan, checked)
            return plan
        refuse(checked.lacking)
        if not checked.imports:
            return plan
    for found in checked.imports:
        assert found.bring_in is not None
        found.bring_in()
    complete(checked)
    refuse(checked.problems + checked.lacking)
    plan = identify(checked)
    require_usable(plan, checked)
    return plan


def reuse(step: Step, plan: Plan[Any], finished: Artifact) -> Made:
    """Use the finished result, and complete what the run that made it may have left undone."""
    say(f"[{plan.name}] unchanged: using {finished.reference} (--force makes it again)")
    distributed.on_rank_zero(lambda: plan.store.use_again(finished))
    distributed.on_rank_zero(lambda: finish_again(plan, finished, keep=step.keeps_state(plan.config)))
    _link_result(step, plan, finished)
    return Made(finished, reused=True)


@contextmanager
def open_run(step: Step, plan: Plan[Any]) -> Generator[Run]:
    """Lock the run's folder, decide what this attempt starts from, and open the experiment trackers.

    `run.finished` is the result if another run published it before this one got the lock; then there is nothing to do.
    """
    with locked_run(plan.run_directory, plan.name, plan.identity.fingerprint) as run:
        run.finished = distributed.on_rank_zero(lambda: made_meanwhile(plan))
        if run.finished is not None:
            run.say(f"another run has just made {run.finished.reference}: using it")
            _link_result(step, plan, run.finished)
            yield run
            return
        distributed.on_rank_zero(lambda: begin(plan, run))
        if distributed.rank() == 0:
            ask_git(step.directory)
        if not step.trains:  # data preparation reports its own progress, and forks its workers: unsafe with threads
            yield run
            return
        distributed.on_rank_zero(lambda: show_run(plan, run))
        with heartbeat(plan.name), _trackers(plan, run):
            yield run


@contextmanager
def _trackers(plan: Plan[Any], run: Run) -> Generator[None]:
    """Open the config's experiment trackers, which receive every line of metrics.jsonl, and the result."""
    section = getattr(plan.config, "logger", None)
    if not isinstance(section, TrackerSection):
        yield
        return
    settings = plan.identity.what | plan.identity.how
    itself = engine_of(plan.config).tracks_itself
    with tracked(run.directory.name, run.directory, section, settings, itself) as trackers:
        run.metrics.mirror, run.mirror_result = trackers.figures, trackers.result
        yield


def publish(step: Step, plan: Plan[Any], run: Run, outcome: Outcome) -> Made:
    """Publish what the work made as the next version of the artifact, and tell the trackers."""
    distributed.barrier()
    artifact = distributed.on_rank_zero(lambda: _publish(step, plan, run, outcome))
    _link_result(step, plan, artifact)
    run.mirror_result(artifact, [found for found in plan.inputs.values() if found is not None])
    return Made(artifact, reused=False)


def _publish(step: Step, plan: Plan[Any], run: Run, outcome: Outcome) -> Artifact:
    if run.metrics.path.exists():
        shutil.copyfile(run.metrics.path, outcome.directory / "metrics.jsonl")
    identity = plan.identity
    artifact = plan.store.publish(
        outcome.directory,
        name=plan.name,
        type=step.type_made(plan.config),
        fingerprint=identity.fingerprint,
        producer=producer(step.stage, step.verb, step.directory, identity.result, identity.code, plan.command),
        parents=plan.parents(),
        sources=plan.all_sources(),
        metadata=dict(outcome.metadata),
        metrics=dict(outcome.metrics),
        digests=outcome.digests,
        segments=segments_of_result(run.directory, time.monotonic() - run.began),
    )
    if (count := len(artifact.manifest.segments)) > 1:
        doubt = ": its bytes may differ from those of an uninterrupted run"
        run.say(f"made in {count} segments{'' if promises_bytes(artifact.manifest) else doubt}")
    finish(plan, artifact, run, keep=step.keeps_state(plan.config))
    run.say(f"published {artifact.reference} ({artifact.path})")
    return artifact


def _link_result(step: Step, plan: Plan[Any], artifact: Artifact) -> None:
    """Create the links to the result that the config asks for. Data prepared for a training has none."""
    if step.trains:
        distributed.on_rank_zero(lambda: show_result(plan, artifact))
