"""Identify a step's work: its configuration, its inputs, and whether its result already exists."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from nemotron_shared.artifacts import Artifact, Parent, Source, Store
from nemotron_shared.artifacts.housekeeping import STATES, run_folder, state_folder
from nemotron_shared.artifacts.names import SCHEME, parse_exact
from nemotron_shared.artifacts.verified import forced_command, require_intact
from nemotron_shared.config.overrides import flat
from nemotron_shared.config.schema import StageConfig
from nemotron_shared.engine import checkpoints
from nemotron_shared.engine.engine import engine_of
from nemotron_shared.engine.spec import Task
from nemotron_shared.models.hub import TOKENIZER_FILES
from nemotron_shared.step.arguments import command_words
from nemotron_shared.step.records import (
    CONTENT,
    LENGTH,
    RULE,
    WHAT,
    Identity,
    changes,
    modules_loaded,
    new_segment,
    what_and_how,
    what_it_was,
)
from nemotron_shared.step.start import Preflight
from nemotron_shared.system.atomic import read_regular
from nemotron_shared.system.digest import json_digest
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.run import Run
from nemotron_shared.tracking.segments import read_segments

ConfigT = TypeVar("ConfigT", bound=StageConfig)

STATE = "state.json"
ASKED_ONCE = ("run.force", "run.on_change")
"""Settings of a single command, irrelevant to how the work was done."""


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
class Plan(Generic[ConfigT]):
    """A step's resolved inputs and identity; picklable, so rank 0 can send it to the others.

    Attributes:
        command: the words of the command line, as the result records them.
        finished: the result, if it already exists.
        extends: the shorter training whose last state this one starts from.
    """

    name: str
    config: ConfigT
    values: dict[str, Any]
    origins: Mapping[str, str]
    identity: Identity
    inputs: Mapping[str, Artifact | None]
    sources: list[Source]
    run_directory: Path
    store: Store
    command: tuple[str, ...]
    finished: Artifact | None
    extends: Extension | None

    def task(self, run: Run) -> Task[ConfigT]:
        """What the work is given."""
        return Task(self.config, self.inputs, run, self.store, self.origins)

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


def identify(checked: Preflight[ConfigT]) -> Plan[ConfigT]:
    """Identify the work by everything its result depends on, and look for a finished or unfinished run of it."""
    step, config, values, inputs = checked.step, checked.config, checked.values, checked.inputs
    assert config is not None, "a config that is not valid was refused"
    name, store = checked.name, checked.store
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
    what |= {f"{RULE}{key}": value for key, value in engine_of(config).rules.items()} if step.trains else {}
    identity = Identity(what, how, modules_of_step(checked))
    directory = run_folder(store, name, identity.result)
    finished = None if config.run.force else store.find_by_fingerprint(name, identity.fingerprint)
    begun = (directory / "segments.json").is_file()
    extends = None
    if finished is None and not config.run.force and begun:
        extends = extension_of(store, directory, identity, config.run.on_change)
    elif finished is None and not config.run.force and step.can_extend(config):
        extends = find_extension(store, name, identity)
    return Plan(
        name=name,
        config=config,
        values=values,
        origins=checked.composed.origins,
        identity=identity,
        inputs=dict(inputs),
        sources=sources,
        run_directory=directory,
        store=store,
        command=command_words(checked.start.arguments),
        finished=finished,
        extends=extends,
    )


def modules_of_step(checked: Preflight[Any], *more: str) -> dict[str, str]:
    """Digests of the modules that a step loads with its config, and of `more`."""
    step, config = checked.step, checked.config
    assert config is not None, "a config that is not valid was refused"
    entries = [step.module, *filter(None, [step.engine_module(config)]), *step.chosen(config), *more]
    prepared = step.prepare.module if step.prepare else None
    return modules_loaded(entries, prepared, step.directory, checked.store.home / "cache" / "code.json")


def find_extension(store: Store, name: str, identity: Identity) -> Extension | None:
    """The longest finished training that differs only in having fewer steps, and whose state was kept."""
    length = identity.what.get(LENGTH)
    found = []
    for file in (store.home / STATES / name).glob(f"v*/{STATE}"):
        try:
            state = json.loads(read_regular(file).decode())
            version, step, series = int(file.parent.name[1:]), int(state["step"]), state["series"]
        except (OSError, UserError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue  # incomplete: saved state is optional, without it the training starts from scratch
        if series != identity.series or length is None or step >= length or version not in store.versions(name):
            continue
        if checkpoints.any_marked(file.parent / "checkpoints"):  # otherwise it would start from scratch
            found.append((step, version, file.parent))
    if not found:
        return None
    step, version, folder = max(found)
    return Extension(store.load(name, version), folder, step)


def extension_of(store: Store, directory: Path, identity: Identity, on_change: str) -> Extension | None:
    """The training an unfinished run extends, from its record; None if the run will start over."""
    recorded: Any = (what_it_was(directory / WHAT) or {}).get("extends")
    with suppress(KeyError, TypeError, IndexError, UserError):
        if on_change == "restart" and changes(read_segments(directory)[-1], new_segment(identity)):
            return None
        reference, step = parse_exact(recorded["reference"]), recorded["step"]
        return Extension(store.resolve(reference), state_folder(store, reference), step) if reference else None
    return None


def require_usable(plan: Plan, checked: Preflight) -> None:
    """Refuse a finished result that is damaged.

    Raises:
        UserError: with the files, and the command that makes it again.
    """
    if plan.finished is not None:
        step, arguments = checked.step, checked.start.arguments
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
