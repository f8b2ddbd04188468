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
from nemotron_shared.runtime.models.code import OPTION, config_of, needs_code, require_loadable
from nemotron_shared.runtime.models.importing import Found, find
from nemotron_shared.runtime.models.references import BARE, parse_outside
from nemotron_shared.runtime.remedies import command_of, how_to_make, how_to_prepare

if TYPE_CHECKING:
    from nemotron_shared.runtime.step import Step

ConfigT = TypeVar("ConfigT", bound=StageConfig)
TOKENIZER_KEYS = ("data_prep.tokenizer.model", "model.tokenizer")


@dataclass
class Preflight(Generic[ConfigT]):
    """What is known before any work.

    Attributes:
        shown: each input for people; None where the config names none.
        notes: what a start says about its inputs.
        prepares: the data is missing, and a start would prepare it first; its text says so.
        imports: models and tokenizers that a start would bring in first; what some of them are is known only then.
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
    imports: list[Found] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    config: ConfigT | None = None
    sources: list[Source] = field(default_factory=list)
    contents: Mapping[str, Any] = field(default_factory=dict)
    problems: list[UserError] = field(default_factory=list)
    lacking: list[UserError] = field(default_factory=list)

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
    _validate(checked, step, trusted=arguments.trust_code)
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
        if role != "data":
            _find_model(checked, role, reference, again, trusted=arguments.trust_code)
            return
        found = found or store.resolve(reference, family=run.family)
        checked.inputs[role], shown[role] = found, found.reference
        require_intact(found, store.home, again)
    except NotFound as error:  # not: there, and damaged or unreadable, which nothing may replace silently
        shown[role] = f"{reference} (missing{_instead(step, role, run)})"
        if role == "data" and run.missing_data == "prepare" and step.prepare is not None:
            checked.prepares = f"[{reference}] not there yet"
        elif role != "data" and BARE.fullmatch(reference):  # nobody wants another model than the one of this name
            shown[role] = f"{reference} (missing)"
            remedy = f"the model of that name on the hub is run.{role}=hf://{reference}"
            checked.problems.append(UserError(f"run.{role}: {error.message}", remedy))
        elif role == "model" and run.missing_model == "random":
            checked.notes.append(f"[{reference}] not there: starting from random weights (run.missing_model=random)")
        elif role not in step.optional:
            remedy = how_to_make(step, role, run, arguments, checked.composed)
            checked.problems.append(UserError(f"run.{role}: {error.message}", remedy))
    except UserError as error:
        shown[role] = f"{reference} (cannot be used)"
        checked.problems.append(UserError(f"run.{role}: {error.message.removeprefix('run.data: ')}", error.remedy))


def _find_model(checked: Preflight, role: str, reference: str, again: str, *, trusted: bool) -> None:
    """The model that a reference means: from the store, a folder, or one that a start would import first.

    Raises:
        UserError: there is none, it is damaged, or it cannot be loaded without code that nobody has trusted.
    """
    store, outside = checked.store, parse_outside(reference)
    if outside is None:
        try:
            artifact: Artifact | None = store.resolve(reference, family=checked.run.family)
        except NotFound:
            raise
        except UserError as error:  # capitals, which no artifact's name has
            if not BARE.fullmatch(reference):
                raise
            raise UserError(
                error.message, f"the model of that name on the hub is run.{role}=hf://{reference}"
            ) from error
        shown = artifact.reference
    else:
        found = find(store, outside, weights=True, trusted=trusted)
        artifact, shown = found.artifact, found.shown
        _take(checked, found)
        again = f"bring it in again: nemotron model import {reference}"
    checked.inputs[role], checked.shown[role] = artifact, shown
    if artifact is None:
        return
    require_intact(artifact, store.home, again)
    checked.inputs[role] = replace(artifact, trusted=trusted)
    config = config_of(artifact.path)
    if needs_code(config):  # a type that is only not known here may be known to the engine's own environment
        require_loadable(reference, config, trusted=trusted)


def _take(checked: Preflight, found: Found) -> None:
    """Note what a start says about a model from outside, and that it would bring it in, if there is room."""
    checked.notes += [found.note] if found.note else []
    checked.lacking += [found.no_room] if found.no_room else []
    checked.imports += [found] if found.bring_in else []


def _find_tokenizers(checked: Preflight, step: "Step", *, trusted: bool) -> bool:
    """Replace `hf://...` and `megatron:...` in a tokenizer's setting by the folder that it means.

    Returns:
        False where that is known only when it has been brought in.
    """
    for key in TOKENIZER_KEYS:
        *sections, name = key.split(".")
        if sections[0] not in step.sections:
            continue  # the data is the input, and has its tokenizer inside
        place: Any = checked.values
        for section in sections:
            place = place.get(section) or {}
        text = place.get(name)
        wanted = parse_outside(text) if isinstance(text, str) else None
        if wanted is None:
            continue
        found = find(checked.store, wanted, weights=False, trusted=trusted)
        _take(checked, found)
        checked.inputs["tokenizer"], checked.shown["tokenizer"] = found.artifact, found.shown
        if found.artifact is None:
            return False
        require_intact(found.artifact, checked.store.home, f"bring it in again: nemotron model import {text}")
        place[name] = str(found.artifact.path)
    return True


def _answer_trust_keys(checked: Preflight, step: "Step", *, trusted: bool) -> None:
    """Say to a config of another program what becomes of its `trust_remote_code`."""
    for key, origin in checked.composed.trust_keys.items() if step.consumes else ():
        models = [found for role, found in checked.inputs.items() if found is not None and role != "data"]
        if any(needs_code(config_of(found.path)) for found in models):
            how = "given" if trusted else "what it asks for is said on the command line"
            checked.notes.append(f"{origin}: {key} counts for nothing; {OPTION}: {how}")
        else:
            checked.notes.append(f"{origin}: {key} is not needed: transformers knows the model; no code of it runs")


def _instead(step: "Step", role: str, run: RunSection) -> str:
    """What happens without this input; empty where the run cannot start."""
    if role in step.optional:
        return ": left out"
    if role == "data" and run.missing_data == "prepare" and step.prepare is not None:
        return ": would be prepared first"
    if role == "model" and run.missing_model == "random":
        return ": would start from random weights"
    return ""


def _validate(checked: Preflight, step: "Step", *, trusted: bool) -> None:
    """Fill in `values`, `config`, `sources` and `contents`, as far as they are right."""
    try:
        checked.values = resolve(checked.composed.tree, checked.read)
        _answer_trust_keys(checked, step, trusted=trusted)
        if not _find_tokenizers(checked, step, trusted=trusted):
            return
        config = validate(step.schema, checked.values, checked.composed.origins)
        checked.sources, checked.contents = step.sources(config), step.contents(config)
        checked.config = config
    except UserError as error:
        not_yet = [f" of {shown}>" for shown in checked.shown.values() if shown]
        # a value that comes from data which is prepared first is judged when it is there
        if not (checked.prepares and any(words in str(error) for words in not_yet)):
            checked.problems.append(error)
