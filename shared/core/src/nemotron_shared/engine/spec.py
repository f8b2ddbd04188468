"""What a step is, and what its work is given and gives back.

    STEP = Step(__file__, __doc__, SFTConfig, train, engines=ENGINES, prepare=data_prep.STEP, ...)

What a step reads, makes and is called stands in the table of stages, or in the row that a stage from outside this
repository brings. The statements around its work, from the command line to the published artifact, stand in
`step.step`. So a script says only what is special about its step.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic

from typing_extensions import TypeVar

from nemotron_shared.artifacts import Artifact, ArtifactType, Parent, Source, Store
from nemotron_shared.artifacts.names import SCHEME
from nemotron_shared.config.registry import Registry
from nemotron_shared.config.schema import HasSettings, RunSection, StageConfig
from nemotron_shared.config.training import TrainingConfig
from nemotron_shared.engine.needs import Estimate, Needs
from nemotron_shared.machine.machine import Machine
from nemotron_shared.stages import PACKAGE, STAGES, Product, Stage
from nemotron_shared.system.digest import json_digest
from nemotron_shared.system.errors import Finding, UserError
from nemotron_shared.tracking.run import Run

ConfigT = TypeVar("ConfigT", bound=StageConfig, default=StageConfig, covariant=True)
DATA = "data_prep"
"""Section of the settings by which data is prepared; a training depends on the data that they made."""
BESIDES = ("run", "logger")
"""Sections that a training's result does not depend on, or not as a whole."""
LENGTH = "train.train_iters"
"""Number of training steps. It identifies a result, but a finished training can be extended to more."""
Inputs = Mapping[str, Artifact | None]
"""The artifact for each role; None if it is missing."""


@dataclass(frozen=True)
class Outcome:
    """Result of a step: the folder that becomes the artifact, and what to record about it.

    `digests` are SHA-256 by file name, for files hashed while they were written.
    """

    directory: Path
    metadata: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Extension:
    """Last state of a finished training that had fewer steps."""

    artifact: Artifact
    folder: Path
    step: int

    def as_parent(self) -> Parent:
        """The shorter training as a parent of the longer one."""
        return self.artifact.as_parent("extends")


@dataclass(frozen=True)
class Task(Generic[ConfigT]):
    """A step's work once everything is decided; picklable, so that rank 0 can send it to the others.

    `Task[SFTConfig[AutomodelEngine]]` names the types of its config and engine. `what` identifies the result: settings,
    inputs, raw sources; another value is another result. `how` may differ between attempts at one result: micro batch,
    checkpoint interval, processes. `modules` is the code that the step loads. All three are flat, by dotted key.

    Attributes:
        inputs: the artifact for each role ("data", "model"), or None if the config allows it to be missing.
        run: the folder of the work.
        origins: the place that set a dotted key, "tiny.yaml:14" or "command line".
        name: of the artifact to be made.
        values: the resolved config.
        sources: raw inputs outside the store.
        command: the words of the command line, as the result records them.
        finished: the result, if it already exists.
        extends: the shorter training whose last state this one starts from.
    """

    config: ConfigT
    inputs: Inputs
    run: Run
    store: Store
    origins: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    what: Mapping[str, Any] = field(default_factory=dict)
    how: Mapping[str, Any] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    sources: Sequence[Source] = ()
    command: tuple[str, ...] = ()
    finished: Artifact | None = None
    extends: Extension | None = None

    def input(self, role: str) -> Artifact:
        """An input that must exist."""
        artifact = self.inputs[role]
        assert artifact is not None, f"{role} was resolved before the work began"
        return artifact

    @property
    def result(self) -> str:
        """Id of the result, ignoring code."""
        return json_digest(self.what)

    @property
    def code(self) -> str:
        """One digest over all modules."""
        return json_digest(self.modules)

    @property
    def fingerprint(self) -> str:
        """Id of the result together with its code."""
        return json_digest({"what": self.result, "code": self.code})

    @property
    def series(self) -> str:
        """Id of results that differ only in the number of training steps."""
        return json_digest({key: value for key, value in self.what.items() if key != LENGTH})

    def parents(self) -> list[Parent]:
        """Inputs from the store, and the shorter training this one extends."""
        found = [found.as_parent(role) for role, found in self.inputs.items() if found and not found.is_external]
        return [*found, self.extends.as_parent()] if self.extends else found

    def all_sources(self) -> list[Source]:
        """Raw inputs, and model folders outside the store."""
        external = [found for found in self.inputs.values() if found and found.is_external]
        return [*self.sources, *(Source(found.reference, found.manifest.digest) for found in external)]


@dataclass(frozen=True)
class Step:
    """A step of a stage: its work, and how its settings and inputs are checked.

    Attributes:
        script: path of the script, `stages/<stage>/<verb>.py`; `description` is its docstring.
        schema: pydantic class of the stage's configuration.
        work: makes the result, in the folder of a run.
        engines: engines for the work; None for the preparation of data.
        prepare: the step that makes the input `data` when the config says `missing_data: prepare`.
        check: problems with a config and its inputs, on any machine; the last argument is the family the config is
            a recipe for, or None.
        sources: raw inputs outside the store, as manifest entries; raises UserError for a missing one.
        look: for a dry run, what the beginnings of those inputs would end with.
        remarks: for a dry run, what to know of the inputs that these composed values name, without a look at them.
        contents: content that settings refer to and the result depends on, by key, such as an architecture's fields.
        chosen: further modules chosen by the config, possibly outside this repository.
        estimate: memory, disk and time of the work, for `--dry-run` and `nemotron plan`.
        reinforces: whether, by its composed config, rewards of the model's own answers are all that it learns from.
        package: import path of the folder that holds the stage's.
        outside: the row of a stage from outside this repository, which the table of stages does not have.
    """

    script: str
    description: str
    schema: type[StageConfig]
    work: "Callable[[Task[Any]], Outcome]"
    engines: Registry[type[HasSettings]] | None = None
    prepare: "Step | None" = None
    check: Callable[[Any, Inputs, str | None], Iterable[Finding]] = lambda config, inputs, recipe: ()
    sources: Callable[[Any], list[Source]] = lambda config: []
    look: Callable[[Any], Iterable[Finding]] = lambda config: ()
    remarks: Callable[[Mapping[str, Any]], Iterable[Finding]] = lambda values: ()
    contents: Callable[[Any], Mapping[str, Any]] = lambda config: {}
    chosen: Callable[[Any], list[str]] = lambda config: []
    estimate: Callable[[Any, Inputs, Machine, Needs], Estimate | None] = lambda config, inputs, machine, needs: None
    reinforces: Callable[[Mapping[Any, Any]], bool] = lambda config: False
    package: str = PACKAGE
    outside: Stage | None = None

    def __post_init__(self) -> None:
        """Raises UserError where a row from outside is called otherwise than its folder, or like a stage of ours."""
        if self.outside is None:
            return
        if self.outside.name != self.stage:
            what = f"{self.script}: its stage is called '{self.outside.name}', and its folder '{self.stage}'"
            raise UserError(what, "give the row in `outside` the name of the folder")
        if self.stage in STAGES:
            raise UserError(f"{self.script}: there is a stage '{self.stage}' already", "rename the folder, and the row")

    def __reduce__(self) -> tuple[Callable[[str], "Step"], tuple[str]]:
        """A step travels to other processes by its name."""
        return _step_in, (self.module,)

    @cached_property
    def directory(self) -> Path:
        """The stage's folder."""
        return Path(self.script).resolve().parent

    @property
    def stage(self) -> str:
        """Name of the stage: "sft"."""
        return self.directory.name

    @property
    def verb(self) -> str:
        """Name of the script: "train" or "data_prep"."""
        return Path(self.script).stem

    @property
    def sections(self) -> tuple[str, ...]:
        """Config sections that the result depends on, besides `run`."""
        trains = (name for name in self.schema.model_fields if name not in (DATA, *BESIDES))
        return tuple(trains) if self.trains else (DATA,)

    @property
    def row(self) -> Stage:
        """The stage's row in the table, or the one that it brings."""
        return self.outside or STAGES[self.stage]

    @property
    def makes(self) -> Product:
        """What it makes, if the config asks for nothing else."""
        return self.row.result if self.trains else self.row.data

    @property
    def others(self) -> tuple[Product, ...]:
        """Data that `run.data` may ask for instead, and results of configs with another method."""
        return (*self.row.other_results.values(),) if self.trains else self.row.other_data

    @property
    def consumes(self) -> tuple[str, ...]:
        """Roles of its inputs, each a key of the config's `run` section."""
        return self.row.reads if self.trains else ()

    @property
    def optional(self) -> tuple[str, ...]:
        """Roles that are used if they exist."""
        return self.row.optional if self.trains else ()

    @property
    def extra(self) -> tuple[str, ...]:
        """Roles that only some methods have; they are not part of a result that is made without them."""
        return self.row.extra if self.trains else ()

    @property
    def module(self) -> str:
        """Import path of the script."""
        return f"{self.package}.{self.stage}.{self.verb}"

    @property
    def trains(self) -> bool:
        """Whether an engine does the work; data preparation has none."""
        return self.engines is not None

    def artifact_name(self, run: RunSection, sections: Mapping[Any, Any] = MappingProxyType({})) -> str:
        """Name of the artifact that the run makes; of several, the one that `run.data` refers to.

        Args:
            sections: of the config, by name.
        """
        asked = (run.data or "").removeprefix(SCHEME).partition(":")[0]
        named = (one.name(run.name) for one in (() if self.trains else self.others))
        return asked if asked in named else self._product(sections.get).name(run.name)

    def type_made(self, config: StageConfig) -> ArtifactType:
        """Type of the artifact that a config makes."""
        return self._product(lambda section: getattr(config, section)).type

    def _product(self, section: Callable[[str], Any]) -> Product:
        """What a config with these sections makes."""
        others = self.row.other_results.items() if self.trains else ()
        return next((made for name, made in others if section(name) is not None), self.makes)

    def engine_module(self, config: StageConfig) -> str | None:
        """Module of the engine the config chooses; None for a step without engines."""
        return self.engines.module_of(config.engine.name) if self.engines else None

    def can_extend(self, config: StageConfig) -> bool:
        """Whether a longer training may start from the state of a shorter one."""
        return self.trains and config.engine.extendable and config.run.on_change != "restart"

    def keeps_state(self, config: StageConfig) -> bool:
        """Whether to keep the final state, for a longer training."""
        keeps = isinstance(config, TrainingConfig) and config.engine.extendable and config.checkpoint.keep_last_state
        return self.trains and keeps


def _step_in(module: str) -> Step:
    """The step of a script, by its import path."""
    return importlib.import_module(module).STEP
