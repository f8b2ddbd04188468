"""A start: what a command asks of a step, and everything that is known about it before its work.

    start = load(STEP, parse_arguments("sft/train.py", __doc__, ["-c", "tiny"]))
    start.run.data          # "super3-sft-data:latest"; nothing is looked up yet
    preflight(start)        # the same start with inputs, config, needs and findings

A training and the preparation of its data are one start: one config, composed once.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from nemotron_shared.artifacts import Artifact, Source, Store
from nemotron_shared.artifacts.store import DEFAULT_HOME, HOME_VARIABLE
from nemotron_shared.config.compose import Composed, compose, read_composed, shared_groups
from nemotron_shared.config.overrides import COMMAND_LINE
from nemotron_shared.config.references import resolve_section
from nemotron_shared.config.schema import RunSection, Section, StageConfig
from nemotron_shared.config.validate import validate
from nemotron_shared.engine.needs import Estimate, Needs
from nemotron_shared.engine.spec import DATA, Inputs, Step
from nemotron_shared.machine.description import read_machine
from nemotron_shared.machine.machine import Machine
from nemotron_shared.models.importing import Found
from nemotron_shared.step.arguments import Arguments
from nemotron_shared.system.errors import Finding, UserError, note, of_level, refused
from nemotron_shared.tracking.run import is_recorded

ConfigT = TypeVar("ConfigT", bound=StageConfig)


@dataclass(frozen=True)
class Input:
    """What was found for a role.

    Attributes:
        artifact: None if it is missing, or not imported yet.
        shown: the input as shown to people; None if the config names none.
        prepares: message that the missing data would be prepared first; None if it is there.
        imported: the model or tokenizer that a start would import first.
    """

    artifact: Artifact | None = None
    shown: str | None = None
    prepares: str | None = None
    imported: Found | None = None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Start(Generic[ConfigT]):
    """A step that a command asks for. What follows `machine` is known once the step is checked.

    Attributes:
        run: the section that names the artifacts.
        machine: this one, or the one a dry run is for.
        reported: about config and store.
        found: what was found for each role.
        values: the resolved config.
        reads_inputs: values of the config come from an input, as in `${art:data,pack_size}`.
        config: None if it is invalid, or depends on data that is not there yet.
        sources: raw inputs outside the store; `contents` is content that settings refer to.
        needs: of the engine, if it could be determined.
        estimate: of the run's resources, if the stage has an estimator.
        findings: those reported, then those of the checks.
        checked: the steps of this start that are checked, by module.
    """

    step: Step
    arguments: Arguments
    composed: Composed
    run: RunSection
    store: Store
    machine: Machine
    reported: tuple[Finding, ...] = ()
    found: Mapping[str, Input] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    reads_inputs: bool = False
    config: ConfigT | None = None
    sources: Sequence[Source] = ()
    contents: Mapping[str, Any] = field(default_factory=dict)
    needs: Needs = field(default_factory=Needs)
    estimate: Estimate | None = None
    findings: tuple[Finding, ...] = ()
    checked: "dict[str, Start[Any]]" = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def inputs(self) -> Inputs:
        """The artifact for each role; None if it is missing."""
        return {role: found.artifact for role, found in self.found.items()}

    @property
    def shown(self) -> dict[str, str | None]:
        """Each input as shown to people."""
        return {role: found.shown for role, found in self.found.items()}

    @property
    def prepares(self) -> str | None:
        """Message that the missing data would be prepared first; None if it is there."""
        return next((found.prepares for found in self.found.values() if found.prepares), None)

    @property
    def imports(self) -> list[Found]:
        """Models and tokenizers that a start would import first."""
        return [found.imported for found in self.found.values() if found.imported is not None]

    @property
    def problems(self) -> list[Finding]:
        """Problems on any machine: with config, inputs and sources."""
        return of_level("problem", self.findings)

    @property
    def lacking(self) -> list[Finding]:
        """What is missing on this machine: packages, processes, GPUs, memory, disk."""
        return of_level("lacking", self.findings)

    @property
    def refused(self) -> list[Finding]:
        """Everything that prevents the step from running here."""
        return refused(self.findings)

    @property
    def notes(self) -> list[str]:
        """What a start reports."""
        return [finding.message for finding in of_level("note", self.findings)]

    @property
    def name(self) -> str:
        """Name of the artifact to be made."""
        return self.step.artifact_name(self.run, self.composed.tree)

    @property
    def is_decided(self) -> bool:
        """Whether all inputs are known, so the result can be identified."""
        return self.config is not None and all(found.artifact is not None for found in self.imports)

    @property
    def data_settings(self) -> list[str]:
        """Settings given by the user that change the data, not those that change only how it is prepared."""
        schema = self.step.schema.model_fields[DATA].annotation
        how = schema.how_keys() if isinstance(schema, type) and issubclass(schema, Section) else frozenset()
        keys = (key for key in self.composed.origins if key.startswith(f"{DATA}.") and key.split(".")[1] not in how)
        return sorted(key for key in keys if self.is_by_hand(key))

    def is_by_hand(self, key: str) -> bool:
        """Whether a setting is on the command line or in a file of the user's; not in one recorded by a run."""
        origin = self.composed.origins.get(key, "")
        shipped = [folder.resolve() for folder in (self.step.directory / "config", *shared_groups())]
        others = [file for file in self.composed.files if not any(map(file.resolve().is_relative_to, shipped))]
        named = {one.name for one in others if not is_recorded(one)}
        return origin == COMMAND_LINE or origin.rpartition(":")[0] in named

    def read(self, role: str, name: str) -> Any:
        """The value of `${art:ROLE,NAME}`; for an input that is not there yet, a placeholder."""
        if self.inputs.get(role) is None and self.shown.get(role):
            return f"<{name} of {self.shown[role]}>"
        return artifact_field(self.inputs, role, name)


def load(step: Step, arguments: Arguments) -> Start[Any]:
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
        machine = read_machine(arguments.machine)
    machine = replace(machine, sees_files=False) if arguments.config_alone else machine
    notes = [*composed.notes]
    here = Path.cwd() / DEFAULT_HOME
    if run.home is None and HOME_VARIABLE not in os.environ and store.home != here:
        beside = f"; not {here}, which run.home={DEFAULT_HOME} would take" if here.is_dir() else ""
        notes.append(f"the store is the repository's: {store.home}{beside}")
    return Start(step, arguments, composed, run, store, machine, tuple(map(note, notes)))


def of_step(start: Start[Any], step: Step) -> Start[Any]:
    """The same start for another of its steps: the preparation of a training's data."""
    shared = start.arguments, start.composed, start.run, start.store, start.machine, start.reported
    return Start(step, *shared, checked=start.checked)


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
