"""The contract of an engine, and what the rest of a step asks of it.

    class Automodel(Engine[SFTConfig[AutomodelEngine]]):
        settings = AutomodelEngine

        def run(self, task: Task[SFTConfig[AutomodelEngine]]) -> Outcome:
            from stages.sft.engines.automodel.train import train  # heavy, so only when the engine runs

            return train(task)

A stage lists its engines in `stages/<stage>/engines/__init__.py`; a package outside this repository lists its own as
entry points of the group `nemotron.engines.<stage>`. Importing the class must be cheap: the schema, `--dry-run` and
the checks do that without any engine's library.
"""

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeVar

from nemotron_shared.artifacts import Artifact
from nemotron_shared.config.schema import EngineSection, StageConfig
from nemotron_shared.config.typed_values import refusal
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.console import doing
from nemotron_shared.runtime.environments import how_to_get
from nemotron_shared.runtime.launcher import launch_command
from nemotron_shared.runtime.machine import Machine
from nemotron_shared.runtime.needs import Needs, Problem, missing
from nemotron_shared.runtime.task import Outcome, Task

OWN_PACKAGES = ("stages", "nemotron_shared", "nemotron_data", "nemotron_engines", "nemotron_app", "nemotron_serving")

ConfigT = TypeVar("ConfigT", bound=StageConfig, contravariant=True)
Inputs = Mapping[str, Artifact | None]
"""The artifact of each role, None where there is none, or none yet."""


class Engine(Protocol[ConfigT]):
    """One way to do the work of a stage. `ConfigT` is the stage's config with the engine's own section in it."""

    settings: ClassVar[type[EngineSection]]
    """The class of the section `engine`, whose `name` is a Literal of the engine's name."""

    libraries: ClassVar[str | None] = None
    """The module with which `run` begins, where its import needs no GPU and no setting of its own environment: a
    pipeline then imports it once for all steps."""

    unneeded: ClassVar[tuple[str, ...]] = ()
    """Packages that the libraries import where they find them, for what no run of this engine does. They are not
    found while the libraries are imported, which takes a quarter less time."""

    small_models: ClassVar[str | None] = None
    """The module that makes a small model for a rehearsal of a training; None where there is none."""

    tracks_itself: ClassVar[tuple[str, ...]] = ()
    """Experiment trackers, of "wandb" and "mlflow", that the engine's library logs to by itself."""

    def check(self, config: ConfigT, inputs: Inputs, machine: Machine) -> Iterator[Problem]:
        """What is wrong with the config, on any machine. `--dry-run` asks too, and there inputs may be missing."""
        yield from ()

    def needs(self, config: ConfigT, inputs: Inputs, machine: Machine) -> Needs:
        """What the config needs of the machine: packages, processes, memory. Asked where `check` finds nothing."""
        return Needs()

    def command(self, module: str, processes: int) -> list[str]:
        """How `module`, the step, is started by `nemotron`: as one process, or as several by torchrun."""
        return launch_command(module, processes)

    def run(self, task: Task[ConfigT]) -> Outcome:
        """Do the work. With several processes, each of them calls this."""
        ...

    def render(self, config: ConfigT, model: str | None) -> str | None:
        """What another program would be told, for people; None where the engine starts none.

        Args:
            model: path of `run.model`, which need not exist yet.
        """
        return None


def engine_of(config: StageConfig) -> Engine[StageConfig]:
    """The engine that a config chooses. Its schema has validated the name, and the section by the engine's class."""
    engine: type[Engine[StageConfig]] = config.engines.load(config.engine.name)  # ty: ignore[invalid-assignment]
    return engine()


def import_libraries(engine: type[Engine[Any]]) -> None:
    """Import what `run` begins with."""
    if engine.libraries is None:
        return
    absent = [package for package in engine.unneeded if package not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # ty: ignore[no-matching-overload]  # None: not there, to whoever looks
    try:
        importlib.import_module(engine.libraries)
    finally:
        for package in absent:
            del sys.modules[package]


def run_engine(task: Task[StageConfig]) -> Outcome:
    """Hand the work of a step to the engine that its config chooses.

    Raises:
        UserError: a package that the engine needs is not installed.
    """
    doing("importing libraries")
    engine = engine_of(task.config)
    try:
        import_libraries(type(engine))
        return engine.run(task)
    except ModuleNotFoundError as error:
        if task.run.stop_requested:  # libraries turn a signal that comes while they are imported into errors of theirs
            raise task.run.stopped() from error
        package = error.name or "a package"
        if package.split(".")[0] in OWN_PACKAGES:
            raise
        name = task.config.engine.name
        raise UserError(f"engine '{name}' needs the package '{package}'", how_to_get(name)) from error


def problems_of(config: StageConfig, inputs: Inputs, machine: Machine, origins: Mapping[str, str]) -> list[UserError]:
    """What the chosen engine has against its config, each as an error for people."""
    return as_errors(lambda: engine_of(config).check(config, inputs, machine), origins)


def lacking(
    config: StageConfig, inputs: Inputs, machine: Machine, origins: Mapping[str, str], layout: str | None = None
) -> tuple[list[UserError], Needs]:
    """What the chosen engine needs for its config, and what of it the machine does not have.

    Args:
        layout: the engine file that lays the recipe out on a machine of this size.
    """
    asked = [Needs()]

    def find() -> Iterator[Problem]:
        asked.append(engine_of(config).needs(config, inputs, machine))
        for problem in missing(config.engine.name, asked[-1], machine):
            takes = layout is not None and problem.of_layout
            yield replace(problem, remedy=f"take its layout for this size: engine={layout}") if takes else problem

    return as_errors(find, origins), asked[-1]


def as_errors(find: Callable[[], Iterable[Problem]], origins: Mapping[str, str]) -> list[UserError]:
    """Problems as errors for people; one that names a key begins with where that was set."""
    found: list[UserError] = []
    try:
        for problem in find():
            if problem.key is None:
                found.append(UserError(problem.message, problem.remedy))
            else:
                found.append(refusal(problem.key, problem.message, origins, problem.remedy))
    except UserError as error:  # a check may also stop at the first thing that is wrong
        found.append(error)
    return found


def refuse(found: Sequence[UserError]) -> None:
    """Raise what was found, all of it at once.

    Raises:
        UserError: something was found.
    """
    if len(found) == 1:
        raise found[0]
    if found:
        raise UserError("\n".join(map(str, found)))
