"""How an artifact was made, as far as its manifest and the folder of its run still tell.

past = past_of(store, artifact)
past.how                        # the recorded command
ahead = look_ahead(past, scratch, inputs_of(store, artifact))
ahead.changes                   # ["code of stages.sft.train", "torch 2.12.0 -> 2.13.0"]
"""

import importlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nemotron_app.replay.sources import require_there, require_unchanged
from nemotron_app.training_log import folder_that_made
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.names import DEFAULT_FAMILY, parse_exact
from nemotron_shared.artifacts.verified import command_that_made
from nemotron_shared.errors import UserError
from nemotron_shared.redaction import redact_values
from nemotron_shared.runtime.arguments import Arguments, parse_arguments
from nemotron_shared.runtime.attempts import WHAT, what_it_was
from nemotron_shared.runtime.engine import refuse
from nemotron_shared.runtime.identity import Identity, differences
from nemotron_shared.runtime.plan import Plan, identify
from nemotron_shared.runtime.preflight import preflight
from nemotron_shared.runtime.provenance import environment
from nemotron_shared.runtime.segments import changed_modules, promises_bytes
from nemotron_shared.runtime.step import Step

IMPORT = "import"
NO_SETTINGS = ("tokenizer", "extends")
"""Roles that no setting names: a tokenizer is found by its own name, and a shorter training is gone through anew."""


@dataclass(frozen=True)
class Past:
    """What made an artifact.

    Attributes:
        family: that it was made for.
        how: the config and overrides of the recorded command.
        file: the recorded config with all its values, where the folder of the run is still there.
        recorded: what the work was and with which code, where the folder of the run still says it.
    """

    artifact: Artifact
    family: str
    how: Arguments
    file: Path | None
    recorded: Mapping[str, Any]

    @property
    def promises(self) -> bool:
        """Whether the same bytes are promised: it was made in one go, or as if it had been."""
        return promises_bytes(self.artifact.manifest)


def past_of(store: Store, artifact: Artifact) -> Past:
    """How an artifact of the store was made.

    Raises:
        UserError: it was not made here, but brought in.
    """
    made = artifact.manifest.producer
    if artifact.is_external or made.verb == IMPORT:
        again = f"bring it in again: {command_that_made(artifact.manifest)}" if not artifact.is_external else None
        raise UserError(f"{artifact.reference} was not made here, so there is nothing to replay", again)
    words = shlex.split(made.command)[3:]
    how = replace(parse_arguments(made.stage, "", words), dry_run=False, json=False, machine=None)
    family = next((word.partition("=")[2] for word in how.overrides if word.startswith("run.family=")), DEFAULT_FAMILY)
    folder = folder_that_made(artifact, store)
    recorded: Mapping[str, Any] = what_it_was(folder / WHAT) or {}
    file = (folder / "config.yaml").absolute()
    return Past(artifact, family, how, file if file.is_file() else None, recorded)


@dataclass(frozen=True)
class Ahead:
    """What a replay would be: the step's arguments but for its store, where they come from, what is not as it was."""

    how: Arguments
    told_by: str
    changes: list[str]


def look_ahead(past: Past, store: Store, inputs: Mapping[str, Artifact]) -> Ahead:
    """Check that a replay could begin, and find what differs from then.

    The recorded command comes first, because it fits the code of today. Where it would make something else now,
    because a config that it names has changed, the recorded values are taken, if today's code still knows them all.

    Args:
        store: one of its own, in which nothing but what it was made from stands.

    Raises:
        UserError: something is missing, or a source has other content now.
    """
    require_there(past.artifact)
    references = {role: one.reference for role, one in inputs.items()}
    told_by, how, plan, error = f"the recorded command: {past.artifact.manifest.producer.command}", past.how, None, None
    try:
        plan = _plan(past, reading(how, store.home, references))
    except UserError as wrong:  # a config that it names may have gone
        error = wrong
    is_as_it_was = plan is not None and plan.identity.result == past.artifact.manifest.producer.config_digest
    if not is_as_it_was and past.file is not None:
        recorded = replace(past.how, config=str(past.file), overrides=_without_models(past, references))
        try:
            plan = _plan(past, reading(recorded, store.home, references))
            how, told_by = recorded, f"the recorded values: {past.file}"
        except UserError as wrong:
            what = f"; nor by the recorded values ({past.file}): {wrong.message}"
            error = error and UserError(f"{error.message}{what}", wrong.remedy)
    if plan is None:
        assert error is not None
        raise error
    if plan.identity.result != past.artifact.manifest.producer.config_digest:
        require_unchanged(past.artifact, plan.all_sources())
    return Ahead(how, told_by, _changes(past, plan.identity))


def reading(how: Arguments, home: Path, references: Mapping[str, str]) -> Arguments:
    """The arguments with a store, and by role what is read from it, where a setting names that."""
    read = [f"run.{role}={one}" for role, one in references.items() if role not in NO_SETTINGS]
    return replace(how, overrides=(*how.overrides, f"run.home={home}", "run.force=false", *read))


def _without_models(past: Past, references: Mapping[str, str]) -> tuple[str, ...]:
    """Overrides for the models that the recorded values name and that were not there then."""
    step = _step(past)
    return tuple(f"run.{role}=null" for role in (*step.consumes, *step.optional) if role not in {"data", *references})


def _step(past: Past) -> Step:
    made = past.artifact.manifest.producer
    return importlib.import_module(f"stages.{made.stage}.{made.verb}").STEP


def _plan(past: Past, how: Arguments) -> Plan:
    step = _step(past)
    checked = preflight(step, how)
    refuse(checked.problems + checked.lacking)
    return identify(step, checked)


def _changes(past: Past, now: Identity) -> list[str]:
    """What is not as it was, one phrase each."""
    made, recorded = past.artifact.manifest.producer, past.recorded
    changes = []
    if now.result != made.config_digest:
        named = differences(recorded["what"], redact_values(now.what)) if recorded else []
        # a reference says nothing: an input counts by its content
        references = {f"run.{parent.role}" for parent in past.artifact.manifest.parents}
        named = named or ["what goes in: settings, inputs or sources"]
        changes += [one for one in named if one.partition(" ")[0] not in references]
    if now.code != made.code_digest:
        named = changed_modules(recorded["modules"], now.modules) if recorded else []
        changes += named or [f"code: was that of {made.git or made.code_digest[:12]}"]
    return changes + differences(made.environment, environment())


def inputs_of(store: Store, artifact: Artifact) -> dict[str, Artifact]:
    """The artifacts that it was made from, by role.

    Raises:
        UserError: one is missing, or no longer what it was.
    """
    found = {}
    for parent in artifact.manifest.parents:
        reference = parse_exact(parent.reference)
        assert reference is not None, "a manifest's references are checked when it is read"
        made_from = f"{artifact.reference} was made from"
        remedy = f"restore {store.folder(reference)} from a copy"
        try:
            read = store.resolve(reference)
        except UserError as error:
            raise UserError(
                f"{artifact.reference} was made from {parent.reference}: {error.message}", remedy
            ) from error
        if read.manifest.digest != parent.digest:
            what = f"{made_from} another {parent.reference}: {parent.digest[:12]}"
            raise UserError(f"{what}, and here is {read.manifest.digest[:12]}", remedy)
        found[parent.role] = read
    return found


def link(scratch: Store, artifact: Artifact) -> None:
    """Let an artifact stand in the store `scratch` under its own name and number."""
    place: Path = scratch.root / artifact.manifest.name / f"v{artifact.manifest.version}"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(artifact.path.resolve())
