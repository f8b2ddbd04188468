"""One step of a stage, from the command line to the published artifact.

Data preparation and training are both steps, in all four stages:

    compose the config -> find the inputs -> reuse a finished result, or work -> publish

    STEP = Step(stage="sft", verb="train", schema=SFTConfig, produces="{family}-sft-model", ...)
    sys.exit(STEP.main())
"""

import gc
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from nemotron_shared.artifacts import Artifact, ArtifactType, Source
from nemotron_shared.config.registry import Registry
from nemotron_shared.config.schema import HasSettings, StageConfig
from nemotron_shared.config.training import TrainingConfig
from nemotron_shared.errors import exit_code_of
from nemotron_shared.runtime import distributed
from nemotron_shared.runtime.arguments import Arguments, parse_arguments
from nemotron_shared.runtime.attempts import begin, finish, finish_again
from nemotron_shared.runtime.console import say, tell_json
from nemotron_shared.runtime.engine import Inputs, Problem, engine_of
from nemotron_shared.runtime.estimate import Estimate
from nemotron_shared.runtime.heartbeat import heartbeat
from nemotron_shared.runtime.look import Looked
from nemotron_shared.runtime.machine import Machine
from nemotron_shared.runtime.needs import Needs
from nemotron_shared.runtime.places import show_result, show_run
from nemotron_shared.runtime.plan import Plan, made_meanwhile, make_plan, require_usable
from nemotron_shared.runtime.process import end_with_parent, heed_signals, use_no_code_of_this_folder
from nemotron_shared.runtime.provenance import ask_git, producer
from nemotron_shared.runtime.run import Run, open_run
from nemotron_shared.runtime.segments import promises_bytes, segments_of_result
from nemotron_shared.runtime.stop import STOPPED_EXIT_CODE, Stopped, end_on_sigterm, ignore_echoes
from nemotron_shared.runtime.task import Outcome, Task
from nemotron_shared.runtime.trackers import Trackers, section_of, tracked

__all__ = ["Outcome", "Step", "Task"]

ConfigT = TypeVar("ConfigT", bound=StageConfig)


@dataclass(frozen=True)
class Step(Generic[ConfigT]):
    """A runnable step; `main` is its command line.

    Attributes:
        stage, verb: "sft", "train"; the module is `stages.<stage>.<verb>`.
        schema: pydantic class of the stage's configuration.
        produces: artifact name with `{family}` in it; `artifact_type`: its type.
        sections: config sections that the result depends on.
        work: does the work, on every rank.
        consumes: input roles, each a key of the config's `run` section.
        optional: roles that are used if they exist.
        prepare: the step that makes the input `data` when the config says `missing_data: prepare`.
        check: problems with a config and its inputs, on any machine; the last argument is the family the config is
            a recipe for, or None.
        sources: raw inputs outside the store, as manifest entries; raises UserError for a missing one.
        look: for a dry run, problems found in the beginnings of those inputs.
        contents: content that settings refer to and the result depends on, by key, such as an architecture's fields.
        engines: engines for the work; None for a step without engines.
        chosen: further modules chosen by the config, possibly outside this repository.
        estimate: memory, disk and time of the work, for `--dry-run` and `nemotron plan`.
    """

    stage: str
    verb: str
    directory: Path
    description: str
    schema: type[ConfigT]
    produces: str
    artifact_type: ArtifactType
    sections: tuple[str, ...]
    work: Callable[[Task[ConfigT]], Outcome]
    consumes: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    prepare: "Step[ConfigT] | None" = None
    check: Callable[[ConfigT, Inputs, str | None], Iterable[Problem]] = lambda config, inputs, recipe: ()
    sources: Callable[[ConfigT], list[Source]] = lambda config: []
    look: Callable[[ConfigT], Looked] = lambda config: Looked([], [])
    contents: Callable[[ConfigT], Mapping[str, Any]] = lambda config: {}
    engines: Registry[type[HasSettings]] | None = None
    chosen: Callable[[ConfigT], list[str]] = lambda config: []
    estimate: Callable[[ConfigT, Inputs, Machine, Needs], Estimate | None] = lambda config, inputs, machine, needs: None

    @property
    def module(self) -> str:
        """Import path of the script."""
        return f"stages.{self.stage}.{self.verb}"

    def engine_module(self, config: ConfigT) -> str | None:
        """Module of the engine the config chooses; None for a step without engines."""
        return self.engines.module_of(config.engine.name) if self.engines else None

    def can_extend(self, config: ConfigT) -> bool:
        """Whether a longer training may start from the state of a shorter one."""
        return self.engines is not None and config.engine.extendable and config.run.on_change != "restart"

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run from a command line, and return the exit code."""
        if argv is None:
            use_no_code_of_this_folder()
            end_on_sigterm()
            if "TORCHELASTIC_RUN_ID" in os.environ:  # a rank: a killed torchrun would leave it behind
                end_with_parent(os.getppid(), signal.SIGTERM)
        # The script's folder is first in sys.path, where `evaluate.py` would hide the library of that name.
        sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != self.directory]
        os.environ.setdefault("TQDM_DISABLE", "1")  # libraries' progress bars would overwrite ours
        code = exit_code_of(lambda: self._main(argv))
        if argv is None:
            ignore_echoes()
            gc.freeze()  # at exit: a last garbage collection over everything imported takes 0.1 s
        return code

    def _main(self, argv: Sequence[str] | None) -> int:
        if argv is None:
            heed_signals()
        arguments = parse_arguments(f"{self.stage}/{self.verb}.py", self.description, argv)
        if arguments.dry_run:
            from nemotron_shared.runtime.dry_run import dry_run

            return dry_run(self, arguments) if distributed.rank() == 0 else 0
        if arguments.rehearse:
            from nemotron_shared.runtime.rehearsal import tell

            return tell(self, arguments)
        try:
            artifact, reused = self.make(arguments)
        except Stopped as stopped:
            say(str(stopped))
            return STOPPED_EXIT_CODE
        finally:
            distributed.leave()
        if arguments.json and distributed.rank() == 0:
            tell_json({"artifact": artifact.reference, "path": str(artifact.path), "reused": reused}, indent=None)
        return 0

    def make(self, arguments: Arguments) -> tuple[Artifact, bool]:
        """The artifact, and whether it existed before."""
        plan = distributed.on_rank_zero(lambda: make_plan(self, arguments))
        if plan.finished is not None:
            finished = plan.finished
            distributed.on_rank_zero(lambda: require_usable(plan, self, arguments))
            say(f"[{plan.name}] unchanged: using {plan.finished.reference} (--force makes it again)")
            distributed.on_rank_zero(lambda: plan.store.use_again(finished))
            distributed.on_rank_zero(lambda: finish_again(plan, finished, keep=self._keeps_state(plan.config)))
            self._show(plan, finished)
            return finished, True
        with open_run(plan.run_directory, plan.name, plan.identity.fingerprint) as run:
            meanwhile = distributed.on_rank_zero(lambda: made_meanwhile(plan))
            if meanwhile is not None:
                say(f"[{plan.name}] another run has just made {meanwhile.reference}: using it")
                self._show(plan, meanwhile)
                return meanwhile, True
            distributed.on_rank_zero(lambda: begin(plan, run))
            if distributed.rank() == 0:
                ask_git(self.directory)
            # data preparation reports its own progress, and forks its workers, which is unsafe with threads
            trains = self.engines is not None
            if trains:
                distributed.on_rank_zero(lambda: show_run(plan, run))
            with (
                heartbeat(plan.name) if trains else nullcontext(),
                _trackers(plan, run) if trains else nullcontext(Trackers(run.name, [])) as trackers,
            ):
                outcome = self.work(Task(plan.config, plan.inputs, run, plan.store, plan.origins))
                distributed.barrier()
                artifact = distributed.on_rank_zero(lambda: self._publish(plan, run, outcome))
                self._show(plan, artifact)
                trackers.result(artifact, [found for found in plan.inputs.values() if found is not None])
                return artifact, False

    def _show(self, plan: Plan[ConfigT], artifact: Artifact) -> None:
        """Create the links to the result that the config asks for. Data prepared for a training has none."""
        if self.engines is not None:
            distributed.on_rank_zero(lambda: show_result(plan, artifact))

    def _publish(self, plan: Plan[ConfigT], run: Run, outcome: Outcome) -> Artifact:
        if run.metrics.path.exists():
            shutil.copyfile(run.metrics.path, outcome.directory / "metrics.jsonl")
        config, identity = plan.config, plan.identity
        artifact = plan.store.publish(
            outcome.directory,
            name=plan.name,
            type=self.artifact_type,
            fingerprint=identity.fingerprint,
            producer=producer(self.stage, self.verb, self.directory, identity.result, identity.code),
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
        finish(plan, artifact, run, keep=self._keeps_state(config))
        run.say(f"published {artifact.reference} ({artifact.path})")
        return artifact

    def _keeps_state(self, config: ConfigT) -> bool:
        """Whether to keep the final state, for a longer training."""
        keeps = isinstance(config, TrainingConfig) and config.engine.extendable and config.checkpoint.keep_last_state
        return self.engines is not None and keeps


@contextmanager
def _trackers(plan: Plan[ConfigT], run: Run) -> Generator[Trackers]:
    """Open the config's experiment trackers, which receive every line of metrics.jsonl."""
    config = plan.config
    section = section_of(config)
    if section is None:
        yield Trackers(run.name, [])
        return
    itself = engine_of(config).tracks_itself
    settings = plan.identity.what | plan.identity.how
    with tracked(run.directory.name, run.directory, section, settings, itself) as trackers:
        run.metrics.mirror = trackers.figures
        yield trackers
