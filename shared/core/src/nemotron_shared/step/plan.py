"""Identify a step's work: its configuration, its inputs, and whether its result already exists."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from nemotron_shared.artifacts import Artifact
from nemotron_shared.artifacts.housekeeping import STATES, run_folder, state_folder
from nemotron_shared.artifacts.names import SCHEME, parse_exact
from nemotron_shared.artifacts.verified import forced_command, require_intact
from nemotron_shared.config.overrides import flat
from nemotron_shared.config.schema import StageConfig
from nemotron_shared.engine import checkpoints
from nemotron_shared.engine.engine import engine_of
from nemotron_shared.engine.spec import LENGTH, Extension, Task
from nemotron_shared.models.hub import TOKENIZER_FILES
from nemotron_shared.step.arguments import command_words
from nemotron_shared.step.records import CONTENT, RULE, changes, modules_of_step, new_segment, what_and_how, what_it_was
from nemotron_shared.step.start import Start
from nemotron_shared.system.atomic import read_regular
from nemotron_shared.system.digest import json_digest
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.run import WHAT, Run
from nemotron_shared.tracking.segments import read_segments

ConfigT = TypeVar("ConfigT", bound=StageConfig)

STATE = "state.json"
ASKED_ONCE = ("run.force", "run.on_change")
"""Settings of a single command, irrelevant to how the work was done."""


def identify(start: Start[ConfigT]) -> Task[ConfigT]:
    """Identify the work by everything its result depends on, and look for a finished or unfinished run of it."""
    step, config, inputs, store = start.step, start.config, start.inputs, start.store
    assert config is not None, "a config that is not valid was refused"
    tokenizer = inputs.get("tokenizer")  # its files count through the artifact, not as sources
    sources = [found for found in start.sources if not tokenizer or not found.uri.startswith(f"{tokenizer.path}/")]
    what, how = _what_and_how(start, config)
    what |= {f"source {source.uri}": source.digest for source in sources}
    what |= {f"{CONTENT}{key}": json_digest(value) for key, value in start.contents.items()}
    what |= {f"{RULE}{key}": value for key, value in engine_of(config).rules.items()} if step.trains else {}
    task = Task(
        config=config,
        inputs=dict(inputs),
        run=Run(store.home, start.name),  # until the result is identified, which its folder is named after
        store=store,
        origins=start.composed.origins,
        name=start.name,
        values=start.values,
        what=what,
        how=how,
        modules=modules_of_step(step, config, store.home),
        sources=sources,
        command=command_words(start.arguments),
    )
    task = replace(task, run=Run(run_folder(store, task.name, task.result), task.name, task.fingerprint))
    if config.run.force:
        return task
    if finished := store.find_by_fingerprint(task.name, task.fingerprint):
        return replace(task, finished=finished)
    if (task.run.directory / "segments.json").is_file():
        return replace(task, extends=extension_of(task))
    return replace(task, extends=find_extension(task)) if step.can_extend(config) else task


def _what_and_how(start: Start[Any], config: StageConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings and inputs by dotted key, split into those that identify the result, and the others."""
    digests = {str(found.path): _content(role, found) for role, found in start.inputs.items() if found}
    what: dict[str, Any] = {"step": start.step.module}
    how: dict[str, Any] = {}
    for section in ("run", *start.step.sections):
        whats, hows = what_and_how({section: start.values[section]}, config)
        what |= dict(flat(_without_paths(whats, digests)))
        how |= dict(flat(hows))
    inputs = {f"input {role}": found and digests[str(found.path)] for role, found in start.inputs.items()}
    return what | inputs, {key: value for key, value in how.items() if key not in ASKED_ONCE}


def movable_values(task: Task[Any]) -> dict[str, Any]:
    """The values, with the tokenizer by its name instead of its path in the store."""
    tokenizer = task.inputs.get("tokenizer")
    names = {str(tokenizer.path): f"{SCHEME}{tokenizer.reference}"} if tokenizer else {}
    return _without_paths(task.values, names)


def find_extension(task: Task[Any]) -> Extension | None:
    """The longest finished training that differs only in having fewer steps, and whose state was kept."""
    name, store, length = task.name, task.store, task.what.get(LENGTH)
    found = []
    for file in (store.home / STATES / name).glob(f"v*/{STATE}"):
        try:
            state = json.loads(read_regular(file).decode())
            version, step, series = int(file.parent.name[1:]), int(state["step"]), state["series"]
        except (OSError, UserError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue  # incomplete: saved state is optional, without it the training starts from scratch
        if series != task.series or length is None or step >= length or version not in store.versions(name):
            continue
        if checkpoints.any_marked(file.parent / "checkpoints"):  # otherwise it would start from scratch
            found.append((step, version, file.parent))
    if not found:
        return None
    step, version, folder = max(found)
    return Extension(store.load(name, version), folder, step)


def extension_of(task: Task[Any]) -> Extension | None:
    """The training an unfinished run extends, from its record; None if the run will start over."""
    directory = task.run.directory
    recorded: Any = (what_it_was(directory / WHAT) or {}).get("extends")
    with suppress(KeyError, TypeError, IndexError, UserError):
        if task.config.run.on_change == "restart" and changes(read_segments(directory)[-1], new_segment(task)):
            return None
        reference, step = parse_exact(recorded["reference"]), recorded["step"]
        return (
            Extension(task.store.resolve(reference), state_folder(task.store, reference), step) if reference else None
        )
    return None


def require_intact_result(task: Task[Any], start: Start[Any]) -> None:
    """Refuse a finished result that is damaged.

    Raises:
        UserError: with the files, and the command that makes it again.
    """
    if task.finished is not None:
        step, arguments = start.step, start.arguments
        how = forced_command(step.stage, step.verb, ["-c", arguments.config, *arguments.overrides], step.package)
        require_intact(task.finished, task.store.home, f"make it again: {how}", ask_manifest=False)


def made_meanwhile(task: Task[Any]) -> Artifact | None:
    """The result, if another run published it before this one got the lock."""
    return None if task.config.run.force else task.store.find_by_fingerprint(task.name, task.fingerprint)


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
