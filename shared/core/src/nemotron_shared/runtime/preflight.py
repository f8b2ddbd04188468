"""What keeps a step from running, collected before any work: one function for `--dry-run` and for every start.

    checked = preflight(step, arguments)
    checked.problems     the config, its inputs and its sources: wrong on every machine
    checked.lacking      what this machine does not have: packages, processes, GPUs, memory, disk

A start raises all of them at once, `--dry-run` lists them. What a start would make first (its data, where the config
says so) may be missing; whether that could be made is then judged too.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import yaml

from nemotron_shared.artifacts import Artifact, Source, Store
from nemotron_shared.artifacts.store import DEFAULT_HOME, HOME_VARIABLE
from nemotron_shared.artifacts.verified import require_intact
from nemotron_shared.config.compose import Composed, compose
from nemotron_shared.config.references import resolve, resolve_section
from nemotron_shared.config.schema import RunSection, StageConfig
from nemotron_shared.config.validate import validate
from nemotron_shared.errors import NotFound, UserError
from nemotron_shared.runtime.arguments import Arguments
from nemotron_shared.runtime.data_choice import data_by_settings
from nemotron_shared.runtime.engine import as_errors, lacking, problems_of
from nemotron_shared.runtime.machine import Machine
from nemotron_shared.runtime.remedies import command_of, how_to_make, how_to_prepare

if TYPE_CHECKING:
    from nemotron_shared.runtime.step import Step

ConfigT = TypeVar("ConfigT", bound=StageConfig)


@dataclass
class Preflight(Generic[ConfigT]):
    """What is known before any work.

    Attributes:
        shown: each input for people; None where the config names none.
        notes: what a start says about its inputs.
        prepares: the data is missing, and a start would prepare it first; its text says so.
        config: None where it is not valid, or not known before the data is there.
    """

    composed: Composed
    run: RunSection
    store: Store
    machine: Machine
    inputs: dict[str, Artifact | None] = field(default_factory=dict)
    shown: dict[str, str | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    prepares: str | None = None
    values: dict[str, Any] = field(default_factory=dict)
    config: ConfigT | None = None
    sources: list[Source] = field(default_factory=list)
    contents: Mapping[str, Any] = field(default_factory=dict)
    problems: list[UserError] = field(default_factory=list)
    lacking: list[UserError] = field(default_factory=list)

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
    checked: Preflight[ConfigT] = Preflight(composed, run, store, machine, notes=list(composed.notes))
    here = Path.cwd() / DEFAULT_HOME
    if run.home is None and HOME_VARIABLE not in os.environ and store.home != here:
        beside = f"; not {here}, which run.home={DEFAULT_HOME} would take" if here.is_dir() else ""
        checked.notes.append(f"the store is the repository's: {store.home}{beside}")
    recipe = _family_of_recipe(composed)
    if recipe and recipe[0] != run.family:
        message = f"{recipe[1]}: a recipe of the family {recipe[0]}, and run.family is {run.family}"
        checked.problems.append(UserError(message, f"say: {command_of(step, recipe[0], arguments, composed)}"))
        return checked  # what it would say of inputs is of another family
    for role in (*step.consumes, *step.optional):
        _find_input(checked, step, role, arguments, data)
    if checked.prepares and step.prepare is not None:
        checked.problems += preflight(step.prepare, arguments).problems
    _validate(checked, step)
    config = checked.config
    if config is not None:
        origins = composed.origins
        checked.problems += as_errors(lambda: step.check(config, checked.inputs, recipe and recipe[0]), origins)
        if step.engines is not None:
            unsound = problems_of(config, checked.inputs, machine, origins)
            checked.problems += unsound
            if not unsound:
                lacks, memory = lacking(config, checked.inputs, machine, origins)
                checked.lacking += lacks
                checked.notes += [memory] if memory else []
    checked.problems = list({str(problem): problem for problem in checked.problems}.values())
    return checked


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


def _family_of_recipe(composed: Composed) -> tuple[str, str] | None:
    """The family that a recipe is written for, and its file; None for `default`, `tiny` and whatever takes any."""
    for file in reversed(composed.files):
        if file.stem == "default":
            continue
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
        run = values.get("run") if isinstance(values, dict) else None
        family = run.get("family") if isinstance(run, dict) else None
        if isinstance(family, str) and "$" not in family:
            return family, file.name
    return None


def _find_input(checked: Preflight, step: "Step", role: str, arguments: Arguments, prepared: Artifact | None) -> None:
    """The artifact of a role; a missing one is prepared, left out, or a problem, as the config says."""
    run, store, shown = checked.run, checked.store, checked.shown
    reference = getattr(run, role)
    checked.inputs[role] = shown[role] = None
    if reference is None:
        return
    again = how_to_make(step, role, run, arguments, checked.composed, again=True)
    try:
        found = prepared if role == "data" else None
        choice = None if found or role != "data" else data_by_settings(step, run, store, arguments, checked.composed)
        if choice is not None:
            settings = f"with {', '.join(choice.given)} as given here"
            if choice.artifact is None:
                shown[role] = f"(none {settings}{_instead(step, role, run)})"
                if run.missing_data == "prepare" and step.prepare is not None:
                    checked.prepares = f"[{step.prepare.produces.format(family=run.family)}] none {settings}"
                else:
                    message = f"run.data: no data was prepared {settings}"
                    checked.problems.append(UserError(message, how_to_prepare(step, run, arguments, checked.composed)))
                return
            found, again = choice.artifact, how_to_prepare(step, run, arguments, checked.composed) + " --force"
            checked.notes.append(f"[{found.reference}] is the data {settings}")
        found = found or store.resolve(reference, family=run.family)
        checked.inputs[role], shown[role] = found, found.reference
        require_intact(found, store.home, again)
    except NotFound as error:  # not: there, and damaged or unreadable, which nothing may replace silently
        shown[role] = f"{reference} (missing{_instead(step, role, run)})"
        if role == "data" and run.missing_data == "prepare" and step.prepare is not None:
            checked.prepares = f"[{reference}] not there yet"
        elif role == "model" and run.missing_model == "random":
            checked.notes.append(f"[{reference}] not there: starting from random weights (run.missing_model=random)")
        elif role not in step.optional:
            remedy = how_to_make(step, role, run, arguments, checked.composed)
            checked.problems.append(UserError(f"run.{role}: {error.message}", remedy))
    except UserError as error:
        shown[role] = f"{reference} (cannot be used)"
        checked.problems.append(UserError(f"run.{role}: {error.message.removeprefix('run.data: ')}", error.remedy))


def _instead(step: "Step", role: str, run: RunSection) -> str:
    """What happens without this input; empty where the run cannot start."""
    if role in step.optional:
        return ": left out"
    if role == "data" and run.missing_data == "prepare" and step.prepare is not None:
        return ": would be prepared first"
    if role == "model" and run.missing_model == "random":
        return ": would start from random weights"
    return ""


def _validate(checked: Preflight, step: "Step") -> None:
    """Fill in `values`, `config`, `sources` and `contents`, as far as they are right."""
    try:
        checked.values = resolve(checked.composed.tree, checked.read)
        config = validate(step.schema, checked.values, checked.composed.origins)
        checked.sources, checked.contents = step.sources(config), step.contents(config)
        checked.config = config
    except UserError as error:
        not_yet = [f" of {shown}>" for shown in checked.shown.values() if shown]
        # a value that comes from data which is prepared first is judged when it is there
        if not (checked.prepares and any(words in str(error) for words in not_yet)):
            checked.problems.append(error)
