"""Plan a step: its configuration, its inputs, and whether its result already exists."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nemotron_shared.artifacts import Artifact, Parent, Source, Store
from nemotron_shared.artifacts.housekeeping import run_folder
from nemotron_shared.artifacts.names import SCHEME
from nemotron_shared.artifacts.verified import forced_command, require_intact
from nemotron_shared.config.schema import StageConfig
from nemotron_shared.digest import json_digest
from nemotron_shared.runtime.arguments import Arguments
from nemotron_shared.runtime.attempts import Extension, extension_of, find_extension
from nemotron_shared.runtime.console import say
from nemotron_shared.runtime.engine import refuse
from nemotron_shared.runtime.identity import CONTENT, Identity, flat, modules_loaded, what_and_how
from nemotron_shared.runtime.models.hub import TOKENIZER_FILES
from nemotron_shared.runtime.preflight import Preflight, preflight

if TYPE_CHECKING:
    from nemotron_shared.runtime.step import Step

ConfigT = TypeVar("ConfigT", bound=StageConfig)


ASKED_ONCE = ("run.force", "run.on_change")
"""Settings of a single command, irrelevant to how the work was done."""


@dataclass(frozen=True)
class Plan(Generic[ConfigT]):
    """A step's resolved inputs and identity; picklable, so rank 0 can send it to the others."""

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
        """Inputs from the store, and the shorter training this one extends."""
        found = [found.as_parent(role) for role, found in self.inputs.items() if found and not found.is_external]
        return [*found, self.extends.as_parent()] if self.extends else found

    def movable_values(self) -> dict[str, Any]:
        """The values, with the tokenizer by its name instead of its path in the store."""
        tokenizer = self.inputs.get("tokenizer")
        names = {str(tokenizer.path): f"{SCHEME}{tokenizer.reference}"} if tokenizer else {}
        return _without_paths(self.values, names)

    def all_sources(self) -> list[Source]:
        """Raw inputs, and model folders outside the store."""
        external = [found for found in self.inputs.values() if found and found.is_external]
        return [*self.sources, *(Source(found.reference, found.manifest.digest) for found in external)]


def make_plan(step: "Step[ConfigT]", arguments: Arguments) -> Plan[ConfigT]:
    """Check everything, prepare missing data, and look for a finished result.

    Raises:
        UserError: everything that prevents the step from running, before any work is done.
    """
    checked, prepared = preflight(step, arguments), None
    if checked.prepares and step.prepare is not None:
        refuse(checked.problems + checked.lacking)
        say(f"{checked.prepares}: preparing it first")
        prepared = step.prepare.make(arguments)[0]
        checked = preflight(step, arguments, prepared)
    for note in checked.notes:
        say(note)
    if checked.problems:
        refuse(checked.problems + checked.lacking)
    if checked.is_decided:
        plan = identify(step, checked)
        if plan.finished is not None:  # an existing result can be used on any machine, without its inputs
            return plan
        refuse(checked.lacking)
        if not checked.imports:
            return plan
    for found in checked.imports:
        assert found.bring_in is not None
        found.bring_in()
    checked = preflight(step, arguments, prepared)
    refuse(checked.problems + checked.lacking)
    return identify(step, checked)


def identify(step: "Step[ConfigT]", checked: Preflight[ConfigT]) -> Plan[ConfigT]:
    """Identify the work by everything its result depends on, and look for a finished or unfinished run of it."""
    config, values, inputs, store = checked.config, checked.values, checked.inputs, checked.store
    assert config is not None, "a config that is not valid was refused"
    name = step.produces.format(family=config.run.family)
    tokenizer = inputs.get("tokenizer")  # its files count through the artifact, not as sources
    sources = [found for found in checked.sources if not tokenizer or not found.uri.startswith(f"{tokenizer.path}/")]
    digests = {str(found.path): _content(role, found) for role, found in inputs.items() if found}
    what: dict[str, Any] = {"step": step.module}
    how: dict[str, Any] = {}
    for section in ("run", *step.sections):
        whats, hows = what_and_how({section: values[section]}, config)
        what |= dict(flat(_without_paths(whats, digests)))
        how |= dict(flat(hows))
    how = {key: value for key, value in how.items() if key not in ASKED_ONCE}
    what |= {f"input {role}": artifact and digests[str(artifact.path)] for role, artifact in inputs.items()}
    what |= {f"source {source.uri}": source.digest for source in sources}
    what |= {f"{CONTENT}{key}": json_digest(value) for key, value in checked.contents.items()}
    entries = [step.module, *filter(None, [step.engine_module(config)]), *step.chosen(config)]
    prepared = step.prepare.module if step.prepare else None
    modules = modules_loaded(entries, prepared, step.directory, store.home / "cache" / "code.json")
    identity = Identity(what, how, modules)
    directory = run_folder(store, name, identity.result)
    finished = None if config.run.force else store.find_by_fingerprint(name, identity.fingerprint)
    begun = (directory / "segments.json").is_file()
    extends = None
    if finished is None and not config.run.force and begun:
        extends = extension_of(store, directory, identity, config.run.on_change)
    elif finished is None and not config.run.force and step.can_extend(config):
        extends = find_extension(store, name, identity)
    origins = checked.composed.origins
    return Plan(name, config, values, origins, identity, dict(inputs), sources, directory, store, finished, extends)


def require_usable(plan: Plan[ConfigT], step: "Step[ConfigT]", arguments: Arguments) -> None:
    """Refuse a finished result that is damaged.

    Raises:
        UserError: with the files, and the command that makes it again.
    """
    if plan.finished is not None:
        how = forced_command(step.stage, step.verb, ["-c", arguments.config, *arguments.overrides])
        require_intact(plan.finished, plan.store.home, f"make it again: {how}", ask_manifest=False)


def made_meanwhile(plan: Plan[ConfigT]) -> Artifact | None:
    """The result, if another run published it before this one got the lock."""
    return None if plan.config.run.force else plan.store.find_by_fingerprint(plan.name, plan.identity.fingerprint)


def _content(role: str, artifact: Artifact) -> str:
    """Digest of an input. A tokenizer's is the same with or without its model."""
    if role != "tokenizer":
        return artifact.manifest.digest
    files = artifact.manifest.files.items()
    return json_digest({name: entry.sha256 for name, entry in files if TOKENIZER_FILES.fullmatch(name)})


def _without_paths(value: Any, digests: Mapping[str, str]) -> Any:
    """Replace paths of inputs by digests, so that moving the store changes no identity."""
    if isinstance(value, dict):
        return {key: _without_paths(child, digests) for key, child in value.items()}
    if isinstance(value, list):
        return [_without_paths(child, digests) for child in value]
    if isinstance(value, str):
        for path, digest in digests.items():
            value = value.replace(path, digest)
    return value
