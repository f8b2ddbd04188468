"""Load a start: its arguments, its composed config and the machine it is for. And what checks find out about it.

    start = load(STEP, parse_arguments("sft/train.py", __doc__, ["-c", "tiny"]))
    start.run.data          # "super3-sft-data:latest"; the rest of the config is validated once its inputs are known

A training and the preparation of its data are one start: one config, composed once.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from nemotron_shared.artifacts import Artifact, Source, Store
from nemotron_shared.artifacts.store import DEFAULT_HOME, HOME_VARIABLE
from nemotron_shared.config.compose import Composed, compose, read_composed
from nemotron_shared.config.references import resolve_section
from nemotron_shared.config.schema import RunSection, StageConfig
from nemotron_shared.config.validate import validate
from nemotron_shared.engine.needs import Estimate, Needs
from nemotron_shared.engine.spec import Step
from nemotron_shared.machine.machine import Machine
from nemotron_shared.models.importing import Found
from nemotron_shared.step.arguments import Arguments
from nemotron_shared.system.errors import UserError

ConfigT = TypeVar("ConfigT", bound=StageConfig)


@dataclass(frozen=True)
class Start:
    """What a command asks for, before anything is looked up.

    Attributes:
        run: the section that names the artifacts.
        machine: this one, or the one a dry run is for.
        notes: what is reported about config and store.
        checked: the preflight of each step of this start, by its module; see `preflight`.
    """

    arguments: Arguments
    composed: Composed
    run: RunSection
    store: Store
    machine: Machine
    notes: tuple[str, ...] = ()
    checked: "dict[str, Preflight[Any]]" = field(default_factory=dict, compare=False)


@dataclass
class Preflight(Generic[ConfigT]):
    """Everything known about a step before its work.

    Attributes:
        inputs: the artifact for each role; None if it is missing.
        shown: each input as shown to people; None if the config names none.
        notes: what a start reports about its inputs.
        prepares: message that the missing data would be prepared first; None if it is there.
        imports: models and tokenizers a start would import first; some are known only after that.
        values: the resolved config.
        reads_inputs: values of the config come from an input, as in `${art:data,pack_size}`.
        config: None if it is invalid, or depends on data that is not there yet.
        needs: of the engine, if it could be determined.
        estimate: of the run's resources, if the stage has an estimator.
        problems: with config, inputs and sources, on any machine.
        lacking: missing on this machine: packages, processes, GPUs, memory, disk.
    """

    step: Step
    start: Start
    inputs: dict[str, Artifact | None] = field(default_factory=dict)
    shown: dict[str, str | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    prepares: str | None = None
    imports: list[Found] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    reads_inputs: bool = False
    config: ConfigT | None = None
    sources: list[Source] = field(default_factory=list)
    contents: Mapping[str, Any] = field(default_factory=dict)
    problems: list[UserError] = field(default_factory=list)
    lacking: list[UserError] = field(default_factory=list)
    needs: Needs = field(default_factory=Needs)
    estimate: Estimate | None = None

    @property
    def composed(self) -> Composed:
        """The composed config."""
        return self.start.composed

    @property
    def run(self) -> RunSection:
        """The section that names the artifacts."""
        return self.start.run

    @property
    def store(self) -> Store:
        """The artifact store."""
        return self.start.store

    @property
    def machine(self) -> Machine:
        """The machine that is checked."""
        return self.start.machine

    @property
    def name(self) -> str:
        """Name of the artifact to be made."""
        return self.step.artifact_name(self.run, self.composed.tree)

    @property
    def is_decided(self) -> bool:
        """Whether all inputs are known, so the result can be identified."""
        return self.config is not None and all(found.artifact is not None for found in self.imports)

    def read(self, role: str, name: str) -> Any:
        """The value of `${art:ROLE,NAME}`; for an input that is not there yet, a placeholder."""
        self.reads_inputs = True
        if self.inputs.get(role) is None and self.shown.get(role):
            return f"<{name} of {self.shown[role]}>"
        return artifact_field(self.inputs, role, name)


def load(step: Step, arguments: Arguments) -> Start:
    """Compose the config, or read it where the command that started this process has composed it already.

    Raises:
        UserError: the config cannot be composed, or its `run` section is invalid.
    """
    if arguments.composed is not None:
        composed = read_composed(arguments.composed)
        arguments = replace(arguments, config=composed.choice, overrides=composed.overrides, composed=None)
    else:
        composed = compose(step.directory / "config", arguments.config, arguments.overrides)
    run = _run_section(step, composed)
    store = Store.open(run.home)
    if arguments.machine is None:
        # a dry run is one process, but must count those `nemotron` would start
        machine = Machine.here(store.home, run.nproc_per_node if arguments.dry_run else 1)
    else:
        machine = Machine.described(arguments.machine)
    machine = replace(machine, sees_files=False) if arguments.config_alone else machine
    notes = [*composed.notes]
    here = Path.cwd() / DEFAULT_HOME
    if run.home is None and HOME_VARIABLE not in os.environ and store.home != here:
        beside = f"; not {here}, which run.home={DEFAULT_HOME} would take" if here.is_dir() else ""
        notes.append(f"the store is the repository's: {store.home}{beside}")
    return Start(arguments, composed, run, store, machine, tuple(notes))


def _run_section(step: Step, composed: Composed) -> RunSection:
    """The section that names the artifacts, needed before the rest can be resolved."""
    schema = step.schema.model_fields["run"].annotation
    assert isinstance(schema, type) and issubclass(schema, RunSection)
    origins = {key.removeprefix("run."): origin for key, origin in composed.origins.items() if key.startswith("run.")}
    return validate(schema, resolve_section(composed.tree, "run"), origins)


def artifact_field(inputs: Mapping[str, Artifact | None], role: str, field: str) -> Any:
    """The value of `${art:ROLE,FIELD}`."""
    artifact = inputs.get(role)
    if artifact is None:
        raise UserError(f"${{art:{role},{field}}}: this run has no '{role}'", f"set run.{role}")
    own = {
        "path": str(artifact.path),
        "name": artifact.manifest.name,
        "version": artifact.manifest.version,
        "digest": artifact.manifest.digest,
    }
    values = own | artifact.manifest.metadata
    if field not in values:
        raise UserError(
            f"${{art:{role},{field}}}: {artifact.reference} has no '{field}'", f"it has: {', '.join(values)}"
        )
    return values[field]
