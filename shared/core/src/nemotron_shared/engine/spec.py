"""What a step is: what it reads and makes, and what its work is given and gives back.

    STEP = Step(stage="sft", verb="train", schema=SFTConfig, produces="{family}-sft-model", ...)

Only data and hooks: what happens, and in which order, is written in the stage's script.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, NamedTuple

from typing_extensions import TypeVar

from nemotron_shared.artifacts import Artifact, ArtifactType, Source, Store
from nemotron_shared.artifacts.names import SCHEME
from nemotron_shared.config.registry import Registry
from nemotron_shared.config.schema import HasSettings, RunSection, StageConfig
from nemotron_shared.config.training import TrainingConfig
from nemotron_shared.engine.needs import Estimate, Needs
from nemotron_shared.machine.machine import Machine
from nemotron_shared.stages import Product
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.findings import Problem
from nemotron_shared.tracking.run import Run

ConfigT = TypeVar("ConfigT", bound=StageConfig, default=StageConfig, covariant=True)
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
class Task(Generic[ConfigT]):
    """Everything a step's work needs. `Task[SFTConfig[AutomodelEngine]]` names the types of its config and engine.

    `inputs` maps a role ("data", "model") to its artifact, or to None if the config allows it to be missing; `origins`
    maps a dotted key to the place that set it, "tiny.yaml:14" or "command line".
    """

    config: ConfigT
    inputs: Inputs
    run: Run
    store: Store
    origins: Mapping[str, str] = field(default_factory=dict)

    def input(self, role: str) -> Artifact:
        """An input that must exist."""
        artifact = self.inputs[role]
        assert artifact is not None, f"{role} was resolved before the work began"
        return artifact


class Looked(NamedTuple):
    """What a dry run finds in the beginnings of raw inputs: problems that would end the work, and notes."""

    problems: list[UserError]
    notes: list[str]


class Made(NamedTuple):
    """The result of a step, and whether it existed before."""

    artifact: Artifact
    reused: bool


@dataclass(frozen=True)
class Step:
    """A step of a stage: what it reads and makes, and how its settings and inputs are checked.

    Attributes:
        stage, verb: "sft", "train"; the script is `stages/<stage>/<verb>.py`.
        schema: pydantic class of the stage's configuration.
        produces: artifact name with `{family}` in it; `artifact_type`: its type.
        other_names: names of that kind that `run.data` may ask for instead.
        other_results: what is made instead where the config has a section of that name.
        sections: config sections that the result depends on.
        consumes: input roles, each a key of the config's `run` section.
        optional: roles that are used if they exist.
        extra: roles that only some methods have; they are no part of a result that is made without them.
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
    schema: type[StageConfig]
    produces: str
    artifact_type: ArtifactType
    sections: tuple[str, ...]
    other_names: tuple[str, ...] = ()
    other_results: Mapping[str, Product] = field(default_factory=dict)
    consumes: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    prepare: "Step | None" = None
    check: Callable[[Any, Inputs, str | None], Iterable[Problem]] = lambda config, inputs, recipe: ()
    sources: Callable[[Any], list[Source]] = lambda config: []
    look: Callable[[Any], Looked] = lambda config: Looked([], [])
    contents: Callable[[Any], Mapping[str, Any]] = lambda config: {}
    engines: Registry[type[HasSettings]] | None = None
    chosen: Callable[[Any], list[str]] = lambda config: []
    estimate: Callable[[Any, Inputs, Machine, Needs], Estimate | None] = lambda config, inputs, machine, needs: None

    @property
    def module(self) -> str:
        """Import path of the script."""
        return f"stages.{self.stage}.{self.verb}"

    @property
    def trains(self) -> bool:
        """Whether an engine does the work; data preparation has none."""
        return self.engines is not None

    def artifact_name(self, run: RunSection, sections: Mapping[Any, Any] = MappingProxyType({})) -> str:
        """Name of the artifact for the run's family; of several, the one that `run.data` refers to.

        Args:
            sections: of the config, by name.
        """
        if (other := self._other_result(sections.get)) is not None:
            return other.name(run.family)
        asked = (run.data or "").removeprefix(SCHEME).partition(":")[0]
        names = [name.format(family=run.family) for name in (self.produces, *self.other_names)]
        return asked if asked in names else names[0]

    def type_made(self, config: StageConfig) -> ArtifactType:
        """Type of the artifact that a config makes."""
        other = self._other_result(lambda section: getattr(config, section))
        return self.artifact_type if other is None else other.type

    def _other_result(self, section: Callable[[str], Any]) -> Product | None:
        return next((made for name, made in self.other_results.items() if section(name) is not None), None)

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
