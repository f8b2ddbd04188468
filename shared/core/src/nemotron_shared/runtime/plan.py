"""What a step is about to do: its configuration, its inputs, and whether the result is already there."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nemotron_shared.artifacts import Artifact, Parent, Source, Store
from nemotron_shared.artifacts.verified import require_intact
from nemotron_shared.config.compose import Composed, compose
from nemotron_shared.config.references import resolve, resolve_section
from nemotron_shared.config.schema import RunSection, StageConfig
from nemotron_shared.config.validate import validate
from nemotron_shared.digest import json_digest
from nemotron_shared.errors import NotFound, UserError
from nemotron_shared.runtime.arguments import Arguments
from nemotron_shared.runtime.attempts import Extension, find_extension
from nemotron_shared.runtime.console import say
from nemotron_shared.runtime.data_choice import DataChoice, data_by_settings, how_to_prepare
from nemotron_shared.runtime.engine import require_no_problems
from nemotron_shared.runtime.identity import Identity, flat, modules_loaded, what_and_how
from nemotron_shared.stages import STAGES

if TYPE_CHECKING:
    from nemotron_shared.runtime.step import Step

ConfigT = TypeVar("ConfigT", bound=StageConfig)


ASKED_ONCE = ("run.force", "run.on_change")
"""Settings of one command, which say nothing about how the work was done."""


@dataclass(frozen=True)
class Plan(Generic[ConfigT]):
    """A step's decided inputs and identity; picklable, so that rank 0 can hand it to the others."""

    name: str
    config: ConfigT
    values: dict[str, Any]
    origins: Mapping[str, str]
    identity: Identity
    inputs: Mapping[str, Artifact | None]
    sources: list[Source]
    run_directory: Path
    store: Store
    finished: Artifact | None
    extends: Extension | None

    def parents(self) -> list[Parent]:
        """The inputs that are artifacts of the store, and the shorter training that this one extends."""
        found = [found.as_parent(role) for role, found in self.inputs.items() if found and not found.is_external]
        return [*found, self.extends.as_parent()] if self.extends else found

    def all_sources(self) -> list[Source]:
        """Raw inputs, and model folders from outside the store."""
        external = [found for found in self.inputs.values() if found and found.is_external]
        return [*self.sources, *(Source(found.reference, found.manifest.digest) for found in external)]


def make_plan(step: "Step[ConfigT]", arguments: Arguments) -> Plan[ConfigT]:
    """Compose, resolve, validate, and look for a finished result.

    Raises:
        UserError: anything that keeps the step from running, before any work is done.
    """
    composed = compose(step.directory / "config", arguments.config, arguments.overrides)
    run = run_section(step, composed)
    store = Store.open(run.home)
    inputs = find_inputs(step, run, store, arguments, composed)
    values = resolve(composed.tree, lambda role, field: artifact_field(inputs, role, field))
    config = validate(step.schema, values, composed.origins)
    if step.engines is not None:
        require_no_problems(config, inputs, store.home, composed.origins)
    return identify(step, config, values, composed.origins, inputs, store)


def run_section(step: "Step", composed: Composed) -> RunSection:
    """The section that names the artifacts, which is needed before the rest can be resolved."""
    schema = step.schema.model_fields["run"].annotation
    assert isinstance(schema, type) and issubclass(schema, RunSection)
    return validate(schema, resolve_section(composed.tree, "run"), _below(composed.origins, "run"))


def identify(
    step: "Step[ConfigT]",
    config: ConfigT,
    values: dict[str, Any],
    origins: Mapping[str, str],
    inputs: Mapping[str, Artifact | None],
    store: Store,
) -> Plan[ConfigT]:
    """Name the work by everything its result depends on, and look whether it has been done or begun."""
    name = step.produces.format(family=config.run.family)
    sources = step.sources(config)
    what: dict[str, Any] = {"step": step.module}
    how: dict[str, Any] = {}
    for section in ("run", *step.sections):
        whats, hows = what_and_how({section: values[section]}, config)
        what |= dict(flat(_without_paths(whats, inputs)))
        how |= dict(flat(hows))
    how = {key: value for key, value in how.items() if key not in ASKED_ONCE}
    what |= {f"input {role}": artifact and artifact.manifest.digest for role, artifact in inputs.items()}
    what |= {f"source {source.uri}": source.digest for source in sources}
    what |= {f"content of {key}": json_digest(value) for key, value in step.contents(config).items()}
    entries = [step.module, *filter(None, [step.engine_module(config)]), *step.chosen(config)]
    prepared = step.prepare.module if step.prepare else None
    modules = modules_loaded(entries, prepared, step.directory, store.home / "cache" / "code.json")
    identity = Identity(what, how, modules)
    directory = store.home / "runs" / f"{name}-{identity.result[:12]}"
    finished = None if config.run.force else store.find_by_fingerprint(name, identity.fingerprint)
    begun = (directory / "segments.json").is_file()
    extends = None
    if finished is None and not begun and not config.run.force and step.can_extend(config):
        extends = find_extension(store, name, identity)
    return Plan(name, config, values, origins, identity, dict(inputs), sources, directory, store, finished, extends)


def find_inputs(
    step: "Step", run: RunSection, store: Store, arguments: Arguments, composed: Composed
) -> dict[str, Artifact | None]:
    """The artifact of each role; a missing one is prepared, left out, or an error, as the config says."""
    roles = (*step.consumes, *step.optional)
    inputs = {role: _find_input(step, role, run, store, arguments) for role in roles if role != "data"}
    if "data" in roles:
        choice = data_by_settings(step, run, store, arguments, composed)
        found = _meant_data(step, choice, run, store, arguments) if choice else None
        inputs["data"] = found or _find_input(step, "data", run, store, arguments)
    return {role: inputs[role] for role in roles}


def _meant_data(step: "Step", choice: DataChoice, run: RunSection, store: Store, arguments: Arguments) -> Artifact:
    """The data that the user's settings describe: found, or prepared now."""
    if choice.artifact is not None:
        require_intact(choice.artifact, store.home, how_to_prepare(step, run, arguments) + " --force")
        say(f"[{choice.artifact.reference}] is the data with {', '.join(choice.given)} as given here")
        return choice.artifact
    if run.missing_data == "error" or step.prepare is None:
        message = f"run.data: no data was prepared with {', '.join(choice.given)} as given here"
        raise UserError(message, how_to_prepare(step, run, arguments))
    name = step.prepare.produces.format(family=run.family)
    say(f"[{name}] none with {', '.join(choice.given)} as given here: preparing it first")
    return step.prepare.make(arguments)[0]


def _find_input(step: "Step", role: str, run: RunSection, store: Store, arguments: Arguments) -> Artifact | None:
    reference = getattr(run, role)
    if reference is None:
        return None
    try:
        found = store.resolve(reference, family=run.family)
        require_intact(found, store.home, how_to_make(step, role, run, arguments, again=True))
        return found
    except NotFound as error:  # not: there, and damaged or unreadable, which nothing may replace silently
        if role in step.optional:
            return None
        if role == "data" and run.missing_data == "prepare" and step.prepare is not None:
            say(f"[{reference}] not there yet: preparing it first")
            return step.prepare.make(arguments)[0]
        if role == "model" and run.missing_model == "random":
            say(f"[{reference}] not there: starting from random weights (run.missing_model=random)")
            return None
        raise UserError(f"run.{role}: {error.message}", how_to_make(step, role, run, arguments)) from error
    except UserError as error:
        raise UserError(f"run.{role}: {error.message}", error.remedy) from error


def how_to_make(step: "Step", role: str, run: RunSection, arguments: Arguments, *, again: bool = False) -> str:
    """The command whose result is missing or, `again`, damaged."""
    options = f"-c {arguments.config}{' --force' if again else ''}"
    if role == "data":
        return f"make it: nemotron {run.family} data prep {step.stage} {options}"
    before = STAGES[step.stage].before or step.stage
    return f"make it: nemotron {run.family} {before} {options} (or give run.model=PATH)"


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


def _without_paths(value: Any, inputs: Mapping[str, Artifact | None]) -> Any:
    """Replace where an input lies by what it is, so that a moved store changes no identity."""
    if isinstance(value, dict):
        return {key: _without_paths(child, inputs) for key, child in value.items()}
    if isinstance(value, list):
        return [_without_paths(child, inputs) for child in value]
    if isinstance(value, str):
        for artifact in filter(None, inputs.values()):
            value = value.replace(str(artifact.path), artifact.manifest.digest)
    return value


def _below(origins: Mapping[str, str], section: str) -> dict[str, str]:
    """Origins of one section, with its own name cut off the keys."""
    prefix = f"{section}."
    return {key.removeprefix(prefix): origin for key, origin in origins.items() if key.startswith(prefix)}
