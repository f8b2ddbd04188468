"""What keeps a step from running, collected before any work: one function for `--dry-run` and for every start.

    checked = preflight(step, arguments)
    checked.problems     the config, its inputs and its sources: wrong on every machine
    checked.lacking      what this machine does not have: packages, processes, GPUs, memory, disk

A start raises all of them at once, `--dry-run` lists them. What a start would make first (its data, where the config
says so) may be missing; whether that could be made is then judged too.
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
"""From here on the memory that a process keeps is told: that of the tiny model interests nobody."""
ConfigT = TypeVar("ConfigT", bound=StageConfig)


@dataclass
class Preflight(Generic[ConfigT]):
    """What is known before any work.

    Attributes:
        shown: each input for people; None where the config names none.
        notes: what a start says about its inputs.
        prepares: the data is missing, and a start would prepare it first; its text says so.
        imports: models and tokenizers that a start would bring in first; what some of them are is known only then.
        config: None where it is not valid, or not known before the data is there.
        needs: of the engine, as far as it could be asked; `estimate`: what the run takes, where the stage says so.
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
        """Whether all inputs are known, so that the result has a name."""
        return self.config is not None and all(found.artifact is not None for found in self.imports)

    def read(self, role: str, name: str) -> Any:
        """The value of `${art:ROLE,NAME}`; of an input that is not there yet, words that say so."""
        if self.inputs.get(role) is None and self.shown.get(role):
            return f"<{name} of {self.shown[role]}>"
        return artifact_field(self.inputs, role, name)


def preflight(step: "Step[ConfigT]", arguments: Arguments, data: Artifact | None = None) -> Preflight[ConfigT]:
    """Compose, find the inputs, resolve, validate and check.

    Args:
        data: what was prepared just now, whatever `run.data` says.

    Raises:
        UserError: the config cannot be composed, or its section `run` is not valid.
    """
    composed = compose(step.directory / "config", arguments.config, arguments.overrides)
    run = run_section(step, composed)
    store = Store.open(run.home)
    if arguments.machine is None:
        # a dry run is one process, and speaks of those that `nemotron` would start
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
        return checked  # what it would say of inputs is of another family
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
    """All of them, or of a config alone those that the user names."""
    for role in (*step.consumes, *step.optional):
        if arguments.config_alone and not is_named(checked, step, role):
            reference = getattr(checked.run, role)
            checked.inputs[role], checked.shown[role] = None, reference and f"{reference} (not looked for)"
        else:
            find_input(checked, step, role, arguments, data)
    if not checked.machine.sees_files and not arguments.config_alone:
        _leave_to_the_start(checked)


def _leave_to_the_start(checked: Preflight) -> None:
    """What is wrong with inputs here says nothing of a machine with other files."""
    checked.notes += [f"not looked for from here: {role}, {text}" for role, text in checked.shown.items() if text]
    checked.problems, checked.prepares = [], None


def run_section(step: "Step", composed: Composed) -> RunSection:
    """The section that names the artifacts, which is needed before the rest can be resolved."""
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
    """Fill in `values`, `config`, `sources` and `contents`, as far as they are right."""
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
        # a value that comes from data which is prepared first is judged when it is there
        if not (checked.prepares and any(words in str(error) for words in not_yet)):
            checked.problems.append(error)
