"""The interface of engines, and the functions by which steps use it.

    class Automodel(Engine[SFTConfig[AutomodelEngine]]):
        settings = AutomodelEngine

        def run(self, task: Task[SFTConfig[AutomodelEngine]]) -> Outcome:
            from stages.sft.engines.automodel.train import train  # heavy, so only when the engine runs

            return train(task)

A stage lists its engines in `stages/<stage>/engines/__init__.py`; a package outside this repository adds its own as
entry points in the group `nemotron.engines.<stage>`. Importing the class must be cheap: the schema, `--dry-run` and
the checks do so without any engine's library.
"""

import gc
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeVar

from nemotron_shared.config.schema import EngineSection, StageConfig
from nemotron_shared.config.validate import refusal
from nemotron_shared.engine.needs import Needs
from nemotron_shared.engine.spec import Inputs, Outcome, Task
from nemotron_shared.machine.environments import how_to_get
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system.console import doing
from nemotron_shared.system.errors import Finding, UserError
from nemotron_shared.system.process import launch_command

OWN_PACKAGES = ("stages", "nemotron_shared", "nemotron_data", "nemotron_engines", "nemotron_app", "nemotron_serving")

ConfigT = TypeVar("ConfigT", bound=StageConfig, contravariant=True)


class Engine(Protocol[ConfigT]):
    """One implementation of a stage's work. `ConfigT` is the stage's config with the engine's own section."""

    settings: ClassVar[type[EngineSection]]
    """Class of the `engine` section, whose `name` is a Literal of the engine's name."""

    libraries: ClassVar[str | None] = None
    """The module `run` imports first, if packages in `unneeded` are to be hidden during its import."""

    begins_with: ClassVar[tuple[str, ...]] = ()
    """Modules that `libraries` imports in any case, and that change nothing for other engines. A command that starts
    several steps imports them once, and forks the steps.
    """

    unneeded: ClassVar[tuple[str, ...]] = ()
    """Packages that the libraries import if present, for features no run of this engine uses. Hiding them during the
    import makes it a quarter faster.
    """

    small_models: ClassVar[str | None] = None
    """The module that makes a small model for rehearsals; None if the engine has none."""

    rules: ClassVar[Mapping[str, str]] = {}
    """Decisions of our code that no setting shows and a training's numbers depend on: {"weight decay": "by role"}.

    They are part of a result's identity: an unfinished training continues under the rules that it began with, or not at
    all. docs/upgrading.md lists the changes.
    """

    rehearsing: ClassVar[str | None] = None
    """The context manager in which a rehearsal trains, as "module:NAME"; None if it needs none."""

    tracks_itself: ClassVar[tuple[str, ...]] = ()
    """Experiment trackers ("wandb", "mlflow") that the engine's library logs to on its own."""

    def check(self, config: ConfigT, inputs: Inputs, machine: Machine) -> Iterator[Finding]:
        """Problems with the config on any machine. `--dry-run` calls it too, possibly with missing inputs."""
        yield from ()

    def needs(self, config: ConfigT, inputs: Inputs, machine: Machine) -> Needs:
        """Requirements on the machine: packages, processes, memory. Called if `check` finds nothing."""
        return Needs()

    def notes(self, config: ConfigT, inputs: Inputs) -> Iterator[Finding]:
        """What a start says about its inputs; `--dry-run`, too. Called if `check` finds nothing."""
        yield from ()

    def command(self, module: str, processes: int) -> list[str]:
        """The command `nemotron` starts the step's `module` with: one process, or several under torchrun."""
        return launch_command(module, processes)

    def run(self, task: Task[ConfigT]) -> Outcome:
        """Do the work. Every process calls this."""
        ...

    def render(self, config: ConfigT, model: str | None) -> str | None:
        """Settings passed to another program, for people to read; None if the engine starts none.

        Args:
            model: path of `run.model`, which need not exist yet.
        """
        return None


def engine_of(config: StageConfig) -> Engine[StageConfig]:
    """The engine a config chooses; its schema has validated the name and the engine's section."""
    engine: type[Engine[StageConfig]] = config.engines.load(config.engine.name)  # ty: ignore[invalid-assignment]
    return engine()


def import_libraries(engine: type[Engine[Any]]) -> None:
    """Import what `run` needs first, without collecting garbage: looking through what was imported takes 0.8 s.

    It stays, so later collections do not look at it either.
    """
    if engine.libraries is None or engine.libraries in sys.modules:
        return
    absent = [package for package in engine.unneeded if package not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # ty: ignore[no-matching-overload]  # None hides a module from imports
    collected = gc.isenabled()
    gc.disable()
    try:
        importlib.import_module(engine.libraries)
        gc.freeze()
    finally:
        if collected:
            gc.enable()
        for package in absent:
            del sys.modules[package]


def run_engine(task: Task[StageConfig]) -> Outcome:
    """Run a step's work with the chosen engine.

    Raises:
        UserError: a package the engine needs is not installed.
    """
    doing("importing libraries")
    engine = engine_of(task.config)
    try:
        import_libraries(type(engine))
        return engine.run(task)
    except ModuleNotFoundError as error:
        if task.run.stop_requested:  # libraries turn a signal during their import into ImportErrors
            raise task.run.stopped() from error
        package = error.name or "a package"
        if package.split(".")[0] in OWN_PACKAGES:
            raise
        name = task.config.engine.name
        raise UserError(f"engine '{name}' needs the package '{package}'", how_to_get(name)) from error


def problems_of(config: StageConfig, inputs: Inputs, machine: Machine, origins: Mapping[str, str]) -> list[Finding]:
    """The chosen engine's problems with its config."""
    return findings_of(lambda: engine_of(config).check(config, inputs, machine), origins)


def findings_of(check: Callable[[], Iterable[Finding]], origins: Mapping[str, str]) -> list[Finding]:
    """What a check finds, each with the place that set the key at fault; an error that it raises is the last."""
    found: list[Finding] = []
    try:
        found.extend(_located(finding, origins) for finding in check())
    except UserError as error:
        found.append(error.finding)
    return found


def _located(finding: Finding, origins: Mapping[str, str]) -> Finding:
    if finding.key is None or finding.level == "note":
        return finding
    return replace(finding, message=refusal(finding.key, finding.message, origins).message)


def refuse(findings: Iterable[Finding]) -> None:
    """Raise all findings as one error, if there are any.

    Raises:
        UserError: with all of them.
    """
    found = list(findings)
    if len(found) == 1:
        raise UserError(found[0].message, found[0].remedy, found[0].key)
    if found:
        raise UserError("\n".join(map(str, found)))
