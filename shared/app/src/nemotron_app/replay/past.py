"""How an artifact was made, according to its manifest and, if it still exists, the folder of its run.

past = past_of(store, artifact)
past.how                        # the recorded command
plan = plan_replay(past, scratch, inputs_of(store, artifact))
plan.changes                    # ["code of stages.sft.train", "torch 2.12.0 -> 2.13.0"]
"""

import importlib
import os
import shlex
from collections.abc import Generator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nemotron_app.training_log import folder_that_made
from nemotron_data.sources.datasets import SYNTHETIC
from nemotron_data.sources.input_file import is_remote
from nemotron_shared.artifacts import Artifact, Source, Store
from nemotron_shared.artifacts.names import parse_exact
from nemotron_shared.artifacts.verified import command_that_made
from nemotron_shared.engine.engine import refuse
from nemotron_shared.engine.spec import Step, Task
from nemotron_shared.stages import DEFAULT_FAMILY, STAGES
from nemotron_shared.step.arguments import Arguments, parse_arguments
from nemotron_shared.step.attempts import WHAT, what_it_was
from nemotron_shared.step.plan import identify
from nemotron_shared.step.preflight import preflight
from nemotron_shared.step.records import FOLDER, changed_modules, differences, why_not_promised
from nemotron_shared.step.start import load
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.redaction import redact_values
from nemotron_shared.system.versions import environment

IMPORT = "import"
NO_SETTINGS = ("tokenizer", "extends")
"""Input roles without a setting: a tokenizer is found by its own name, and a shorter training is repeated in full."""


@dataclass(frozen=True)
class Past:
    """How an artifact was made.

    Attributes:
        family: the family it was made for.
        how: the config and overrides of the recorded command.
        file: the recorded config with all its values, if the folder of the run still exists.
        recorded: identity of the work and its code, if the folder of the run still has it.
    """

    artifact: Artifact
    family: str
    how: Arguments
    file: Path | None
    recorded: Mapping[str, Any]

    @property
    def doubt(self) -> str | None:
        """Why the same bytes are not guaranteed; None if it ran without interruption, or resuming made no difference,
        and all that took part in it can be repeated."""
        return why_not_promised(self.artifact.manifest)

    @property
    def step(self) -> Step:
        """The step that made it."""
        made = self.artifact.manifest.producer
        return importlib.import_module(f"stages.{made.stage}.{made.verb}").STEP


def past_of(store: Store, artifact: Artifact, *, trust_code: bool = False) -> Past:
    """How an artifact of the store was made.

    Args:
        trust_code: consent to running Python files that it names; a manifest's record of such consent grants none,
            because the manifest may be another person's.

    Raises:
        UserError: it was imported, not made here, or by a stage from outside this repository.
    """
    made = artifact.manifest.producer
    if not artifact.is_external and made.verb != IMPORT and made.stage not in STAGES:
        what = f"{artifact.reference} was made by the stage '{made.stage}', which is not of this repository"
        raise UserError(f"{what}, and cannot be replayed", f"make it again: {command_that_made(artifact.manifest)}")
    if artifact.is_external or made.verb == IMPORT:
        again = f"bring it in again: {command_that_made(artifact.manifest)}" if not artifact.is_external else None
        raise UserError(f"{artifact.reference} was not made here, so there is nothing to replay", again)
    words = shlex.split(made.command)[3:]
    how = parse_arguments(made.stage, "", words)
    how = replace(how, dry_run=False, json=False, machine=None, trust_code=trust_code)
    family = next((word.partition("=")[2] for word in how.overrides if word.startswith("run.family=")), DEFAULT_FAMILY)
    folder = folder_that_made(artifact, store)
    file = (folder / "config.yaml").absolute()
    return Past(artifact, family, how, file if file.is_file() else None, what_it_was(folder / WHAT) or {})


@dataclass(frozen=True)
class ReplayPlan:
    """The step's arguments except its store, where they come from, and what has changed since."""

    how: Arguments
    origin: str
    changes: list[str]


def plan_replay(past: Past, store: Store, inputs: Mapping[str, Artifact]) -> ReplayPlan:
    """Check that a replay can start, and find what has changed since.

    The recorded command is tried first, because it fits current code. If it would now make something else, because a
    config that it names has changed, use the recorded values, provided that current code knows all of them.

    Args:
        store: a separate store that contains only the inputs.

    Raises:
        UserError: something is missing, or a source has changed.
    """
    require_sources(past.artifact)
    made = past.artifact.manifest.producer
    references = {role: one.reference for role, one in inputs.items()}
    origin, how, task, error = f"the recorded command: {made.command}", past.how, None, None
    try:
        task = _task(past, with_inputs(how, store.home, references))
    except UserError as wrong:  # a config that it names may be gone
        error = wrong
    if past.file is not None and (task is None or task.result != made.config_digest):
        # the recorded values name models that were not inputs then
        roles = (*past.step.consumes, *past.step.optional, *past.step.extra)
        absent = tuple(f"run.{role}=null" for role in roles if role not in {"data", *references})
        recorded = replace(past.how, config=str(past.file), overrides=absent)
        try:
            task = _task(past, with_inputs(recorded, store.home, references))
            how, origin = recorded, f"the recorded values: {past.file}"
        except UserError as wrong:
            what = f"; nor by the recorded values ({past.file}): {wrong.message}"
            error = error and UserError(f"{error.message}{what}", wrong.remedy)
    if task is None:
        assert error is not None
        raise error
    if task.result != made.config_digest:
        require_unchanged(past.artifact, task.all_sources())
    return ReplayPlan(how, origin, _changes(past, task))


def with_inputs(how: Arguments, home: Path, references: Mapping[str, str]) -> Arguments:
    """Add to the arguments a store and, for each role with a setting, the input to read from it."""
    read = [f"run.{role}={one}" for role, one in references.items() if role not in NO_SETTINGS]
    return replace(how, overrides=(*how.overrides, f"run.home={home}", "run.force=false", *read))


def _task(past: Past, how: Arguments) -> Task[Any]:
    start = preflight(load(past.step, how))
    refuse(start.refused)
    return identify(start)


def _changes(past: Past, now: Task[Any]) -> list[str]:
    """Changes since the artifact was made, one phrase each."""
    made, recorded = past.artifact.manifest.producer, past.recorded
    changes = []
    if now.result != made.config_digest:
        named = differences(recorded["what"], redact_values(now.what)) if recorded else []
        # ignore references: inputs count by their content
        references = {f"run.{parent.role}" for parent in past.artifact.manifest.parents}
        named = named or ["what goes in: settings, inputs or sources"]
        changes += [one for one in named if one.partition(" ")[0] not in references]
    if now.code != made.code_digest:
        named = changed_modules(recorded["modules"], now.modules) if recorded else []
        changes += named or [f"code: was that of {made.git or made.code_digest[:12]}"]
    return changes + differences(made.environment, environment())


def inputs_of(store: Store, artifact: Artifact) -> dict[str, Artifact]:
    """The inputs of an artifact, by role.

    Raises:
        UserError: one is missing or has changed.
    """
    found = {}
    for parent in artifact.manifest.parents:
        reference = parse_exact(parent.reference)
        assert reference is not None, "a manifest's references are checked when it is read"
        remedy = f"restore {store.folder(reference)} from a copy"
        try:
            read = store.resolve(reference)
        except UserError as error:
            what = f"{artifact.reference} was made from {parent.reference}: {error.message}"
            raise UserError(what, remedy) from error
        if read.manifest.digest != parent.digest:
            what = f"{artifact.reference} was made from another {parent.reference}: {parent.digest[:12]}"
            raise UserError(f"{what}, and here is {read.manifest.digest[:12]}", remedy)
        found[parent.role] = read
    return found


def _original_folder(artifact: Artifact) -> str | None:
    """The working folder of the recorded command, from its last attempt."""
    segments = artifact.manifest.segments
    found = segments[-1].get("machine", {}).get(FOLDER) if segments else None
    return found if isinstance(found, str) else None


@contextmanager
def original_cwd(artifact: Artifact) -> Generator[None]:
    """Change to the original working folder if it still exists, because command and config may use relative paths."""
    folder = _original_folder(artifact)
    if folder is None or not os.path.isdir(folder):  # noqa: PTH112 - a manifest of others may hold any text
        yield
        return
    with chdir(folder):
        yield


def require_sources(artifact: Artifact) -> None:
    """Require the local files among the sources.

    Raises:
        UserError: one is missing.
    """
    gone = [one for one in artifact.manifest.sources if _is_file(one) and not os.path.exists(one.uri)]  # noqa: PTH110
    if not gone:
        return
    first, folder = gone[0], _original_folder(artifact)
    place = Path(folder or "", first.uri)
    what = f"{artifact.reference} was made from {first.uri}{_and_more(gone)}, which is not there: {place.absolute()}"
    if folder is None and not place.is_absolute():
        raise UserError(what, "replay it from the folder that it was made in, which it did not record")
    raise UserError(what, f"put {_content(first)} there; a replay reads every source where it was read then")


def require_unchanged(artifact: Artifact, now: Sequence[Source]) -> None:
    """Compare the sources that would be read with those that were read then.

    Raises:
        UserError: a source has changed, was removed, or is new.
    """
    before = {one.uri: one for one in artifact.manifest.sources if _has_content(one)}
    after = {one.uri: one for one in now if _has_content(one)}
    other = [one for uri, one in before.items() if uri in after and after[uri].digest != one.digest]
    for found, change in (
        (other, "has other content now"),
        ([one for uri, one in before.items() if uri not in after], "would not be read any more"),
        ([one for uri, one in after.items() if uri not in before], "was not read then, and would be now"),
    ):
        if not found:
            continue
        first, place = found[0], ""
        remedy = f"restore its content (SHA-256 {first.digest[:12]}...)"
        if _is_file(first):
            place = f" ({Path(_original_folder(artifact) or '', first.uri).absolute()})"
            remedy = f"put {_content(first)} there"
        if first.uri not in before:
            remedy = "take it away from there for the replay"
        raise UserError(f"{artifact.reference}: its source {first.uri}{_and_more(found)} {change}{place}", remedy)


def _is_file(source: Source) -> bool:
    is_code = source.uri.startswith("package:")  # of a registered chat format
    return _has_content(source) and not is_code and not is_remote(source.uri)


def _has_content(source: Source) -> bool:
    """Whether a source has content to compare. Generated rows follow from settings, whose changes are only reported."""
    return not source.uri.startswith(f"{SYNTHETIC}:")


def _content(source: Source) -> str:
    """Description of the content that must be present again."""
    if source.detail.get("digest_of", "content") != "content":
        return "the same file, with the time of its last change (cp -p)"
    return f"a file of the same content (SHA-256 {source.digest[:12]}...)"


def _and_more(found: Sequence[Source]) -> str:
    return f" and {len(found) - 1:,} more" if len(found) > 1 else ""
