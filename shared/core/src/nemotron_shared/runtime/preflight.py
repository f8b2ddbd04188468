"""Checks made before a step starts, for `--dry-run` and for every real start.

    checked = preflight(step, arguments)
    checked.problems     with config, inputs and sources, on any machine
    checked.lacking      missing on this machine: packages, processes, GPUs, memory, disk

A start raises all of them at once, `--dry-run` lists them. Inputs that a start would make first (data, if the config
asks for it) may be missing; then their own preparation is checked as well.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nemotron_shared.artifacts import Artifact, Source, Store
from nemotron_shared.artifacts.claim import HOME_VARIABLE
from nemotron_shared.artifacts.store import DEFAULT_HOME
from nemotron_shared.config.compose import Composed, compose
from nemotron_shared.config.layouts import layout_for
from nemotron_shared.config.overrides import override_key
from nemotron_shared.config.references import resolve, resolve_section
from nemotron_shared.config.schema import RunSection, StageConfig
from nemotron_shared.config.validate import validate
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.arguments import Arguments
from nemotron_shared.runtime.disk import size
from nemotron_shared.runtime.engine import as_errors, lacking, problems_of
from nemotron_shared.runtime.estimate import Estimate
from nemotron_shared.runtime.inputs import answer_trust_keys, find_input, find_tokenizers, is_named
from nemotron_shared.runtime.latest import tell_latest
from nemotron_shared.runtime.machine import Machine
from nemotron_shared.runtime.models.importing import Found
from nemotron_shared.runtime.needs import Needs
from nemotron_shared.runtime.places import place_problems
from nemotron_shared.runtime.recipes import of_another_family, recipes_of
from nemotron_shared.runtime.trackers import missing_key, missing_trackers, unknown_key

if TYPE_CHECKING:
    from nemotron_shared.runtime.step import Step

TOLD_BYTES = 1_000_000_000
"""Report memory per process above this size."""
ConfigT = TypeVar("ConfigT", bound=StageConfig)


@dataclass
class Preflight(Generic[ConfigT]):
    """Everything known before the work.

    Attributes:
        shown: each input as shown to people; None if the config names none.
        notes: what a start reports about its inputs.
        prepares: message that the missing data would be prepared first; None if it is there.
        imports: models and tokenizers a start would import first; some are known only after that.
        config: None if it is invalid, or depends on data that is not there yet.
        needs: of the engine, if it could be determined.
        estimate: of the run's resources, if the stage has an estimator.
    """

    composed: Composed
    run: RunSection
    store: Store
    machine: Machine
    inputs: dict[str, Artifact | None] = field(default_factory=dict)
    shown: dict[str, str | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    prepares: str | None = None
    imports: list[Found] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    config: ConfigT | None = None
    sources: list[Source] = field(default_factory=list)
    contents: Mapping[str, Any] = field(default_factory=dict)
    problems: list[UserError] = field(default_factory=list)
    lacking: list[UserError] = field(default_factory=list)
    needs: Needs = field(default_factory=Needs)
    estimate: Estimate | None = None

    @property
    def is_decided(self) -> bool:
        """Whether all inputs are known, so the result can be identified."""
        return self.config is not None and all(found.artifact is not None for found in self.imports)

    def read(self, role: str, name: str) -> Any:
        """The value of `${art:ROLE,NAME}`; for an input that is not there yet, a placeholder."""
        if self.inputs.get(role) is None and self.shown.get(role):
            return f"<{name} of {self.shown[role]}>"
        return artifact_field(self.inputs, role, name)


def preflight(step: "Step[ConfigT]", arguments: Arguments, data: Artifact | None = None) -> Preflight[ConfigT]:
    """Compose, find the inputs, resolve, validate and check.

    Args:
        data: data that was just prepared, overriding `run.data`.

    Raises:
        UserError: the config cannot be composed, or its `run` section is invalid.
    """
    composed = compose(step.directory / "config", arguments.config, arguments.overrides)
    run = run_section(step, composed)
    store = Store.open(run.home)
    if arguments.machine is None:
        # a dry run is one process, but must count those `nemotron` would start
        machine = Machine.here(store.home, run.nproc_per_node if arguments.dry_run else 1)
    else:
        machine = Machine.described(arguments.machine)
    machine = replace(machine, sees_files=False) if arguments.config_alone else machine
    checked: Preflight[ConfigT] = Preflight(composed, run, store, machine, notes=list(composed.notes))
    here = Path.cwd() / DEFAULT_HOME
    if run.home is None and HOME_VARIABLE not in os.environ and store.home != here:
        beside = f"; not {here}, which run.home={DEFAULT_HOME} would take" if here.is_dir() else ""
        checked.notes.append(f"the store is the repository's: {store.home}{beside}")
    recipes = recipes_of(composed)
    if wrong := of_another_family(step, run.family, recipes, arguments, composed):
        checked.problems.append(wrong)
        return checked  # further checks would be about the wrong family's inputs
    _find_inputs(checked, step, arguments, data)
    if checked.prepares and step.prepare is not None:
        checked.problems += preflight(step.prepare, arguments).problems
    _validate(checked, step, arguments)
    if machine.sees_files and not arguments.in_pipeline:
        tell_latest(checked, step, arguments)
    config = checked.config
    if config is not None:
        origins, recipe = composed.origins, recipes[0].family if recipes else None
        checked.problems += as_errors(lambda: step.check(config, checked.inputs, recipe), origins)
        if step.engines is not None:
            name = step.produces.format(family=run.family)
            checked.problems += as_errors(lambda: place_problems(config, name, store, machine), origins)
            unsound = problems_of(config, checked.inputs, machine, origins)
            checked.problems += unsound
            if not unsound:
                found, needs = lacking(config, checked.inputs, machine, origins, _layout(step, arguments, checked))
                checked.lacking, checked.needs = checked.lacking + found, needs
                checked.lacking += as_errors(lambda: missing_trackers(config, machine), origins)
                checked.lacking += as_errors(lambda: missing_key(config, machine), origins)
                checked.notes += [*config.notes, *unknown_key(config, machine)]
                engine = composed.tree.engine
                known = (engine.get("experimental") or []) if engine.get("allow_experimental") else []
                checked.notes += [f"this recipe is experimental: {reason}" for reason in known]
                if needs.process_bytes >= TOLD_BYTES:
                    checked.notes.append(f"a process keeps at least {size(needs.process_bytes)}: {needs.kept}")
        if arguments.dry_run and machine.sees_files:
            looked = step.look(config)
            checked.problems += looked.problems
            checked.notes += looked.notes
        if arguments.dry_run:
            checked.estimate = step.estimate(config, checked.inputs, machine, checked.needs)
    checked.problems = list({str(problem): problem for problem in checked.problems}.values())
    return checked


def _layout(step: "Step", arguments: Arguments, checked: Preflight) -> str | None:
    """The recipe's layout for a machine of this size."""
    others = [text for text in arguments.overrides if override_key(text) != "engine"]
    gpus = max(checked.machine.processes, checked.machine.nodes * len(checked.machine.gpus))
    config_dir = step.directory / "config"
    return layout_for(checked.composed, gpus, lambda word: compose(config_dir, arguments.config, [word, *others]))


def _find_inputs(checked: Preflight, step: "Step", arguments: Arguments, data: Artifact | None) -> None:
    """Find all inputs, or only those the user names with --config-alone."""
    for role in (*step.consumes, *step.optional):
        if arguments.config_alone and not is_named(checked, step, role):
            reference = getattr(checked.run, role)
            checked.inputs[role], checked.shown[role] = None, reference and f"{reference} (not looked for)"
        else:
            find_input(checked, step, role, arguments, data)
    if not checked.machine.sees_files and not arguments.config_alone:
        _leave_to_the_start(checked)


def _leave_to_the_start(checked: Preflight) -> None:
    """Drop problems with inputs: the other machine has other files."""
    checked.notes += [f"not looked for from here: {role}, {text}" for role, text in checked.shown.items() if text]
    checked.problems, checked.prepares = [], None


def run_section(step: "Step", composed: Composed) -> RunSection:
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


def _validate(checked: Preflight, step: "Step", arguments: Arguments) -> None:
    """Fill in `values`, `config`, `sources` and `contents`, stopping at the first error."""
    try:
        checked.values = resolve(checked.composed.tree, checked.read)
        answer_trust_keys(checked, step, trusted=arguments.trust_code)
        if not arguments.config_alone and not find_tokenizers(checked, step, trusted=arguments.trust_code):
            return
        config = validate(step.schema, checked.values, checked.composed.origins)
        if checked.machine.sees_files:
            checked.sources, checked.contents = step.sources(config), step.contents(config)
        checked.config = config
    except UserError as error:
        not_yet = [f" of {shown}>" for shown in checked.shown.values() if shown]
        # a value from data that would be prepared first is checked later, when it exists
        if not (checked.prepares and any(words in str(error) for words in not_yet)):
            checked.problems.append(error)
