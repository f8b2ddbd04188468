"""Find a step's inputs for its checks: in the store, in a folder or on the hub; or what replaces a missing one.

Inputs that are taken because they are the latest get a note where the config may mean others:

    WARNING: data: super3-pretrain-data:v2 was made from notes.txt, not from synthetic as this config says; ...
    model: super3-pretrain-model:v2 is the latest, fine-tuned on notes.txt; another one: run.model=NAME:vN

Settings of earlier runs are read from their records; without a record, no note is given.
"""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig

from nemotron_shared.artifacts import Artifact, ArtifactType, Store
from nemotron_shared.artifacts.artifact import fine_tuning_of
from nemotron_shared.artifacts.housekeeping import run_folder
from nemotron_shared.artifacts.manifest import HEX_DIGEST
from nemotron_shared.artifacts.names import SCHEME, Reference, is_path, parse_exact, parse_reference
from nemotron_shared.artifacts.store import HOME_VARIABLE
from nemotron_shared.artifacts.verified import require_intact
from nemotron_shared.config.compose import Composed
from nemotron_shared.config.files import parsed, read_text
from nemotron_shared.config.overrides import Said, flat, override_key
from nemotron_shared.config.schema import Section
from nemotron_shared.engine.spec import DATA
from nemotron_shared.families import families
from nemotron_shared.models.finding import look_before_hashing, require_usable
from nemotron_shared.models.folder import OPTION, config_of, needs_code
from nemotron_shared.models.importing import Found, find
from nemotron_shared.models.references import parse_outside, spelled_out
from nemotron_shared.stages import STAGES
from nemotron_shared.step.records import what_and_how, what_it_was
from nemotron_shared.step.start import Input, Start
from nemotron_shared.system.errors import Finding, NotFound, UserError, note, pending, problem
from nemotron_shared.system.redaction import redact_values
from nemotron_shared.tracking.run import WHAT, is_recorded

REWARD_MODEL = "reward_model"
"""The role of a model that scores answers; the models of all other roles write them."""
REQUIRED = {"source": "FILE", "tokenizer.model": "FOLDER"}
"""Data preparation settings that a config may leave to the user."""


MAKE_IT = "make it: "


def how_to_make(start: Start[Any], role: str, *, again: bool = False) -> str:
    """The command that makes a missing input or, with `again`, a damaged one."""
    step, family = start.step, start.run.family
    force = (" --force" if again else "") + _there(start)
    if role == "data":
        return how_to_prepare(start) + (" --force" if again else "")
    if role in step.extra:
        return f"give run.{role}=NAME:vN, or a folder"
    before = step.row.before or step.stage
    known = [file.stem for file in (step.directory.parent / before / "config").glob("*.yaml")]
    # the other stage's config of the same name, else the first phase of the family's recipe; a later phase of the
    # same stage starts from an earlier one, which its own command would not make
    recipes = sorted((name for name in known if name.startswith(family)), key=lambda name: (len(name), name))
    same = () if before == step.stage else bases(start)
    name = next((name for name in (*same, family, *recipes) if name in known), None)
    hub = families()[family].hub if family in families() else None
    given = f"give run.{role}={f'hf://{hub}, or a ' if hub else ''}FOLDER"
    return f"{MAKE_IT}nemotron {family} {before} -c {name}{force} (or {given})" if name else given


def bases(start: Start[Any]) -> list[str]:
    """The stage's own configs that this one is or builds on, the nearest first: `tiny`, `local` of a file upon tiny.

    Without `default`, which all build on and which is not a recipe, unless the user asks for it.
    """
    folder = (start.step.directory / "config").resolve()
    names = [file.stem for file in reversed(start.composed.files) if file.parent == folder]
    return [name for name in names if name != "default" or start.arguments.config == "default"]


def how_to_prepare(start: Start[Any]) -> str:
    """The command that prepares the data these settings describe; FILE and FOLDER stand for the user's choice."""
    arguments = start.arguments
    options = [text for text in arguments.overrides if override_key(text).split(".")[0] == DATA]
    given = {override_key(text) for text in options}
    for key, what in REQUIRED.items():
        section, _, name = f"{DATA}.{key}".rpartition(".")
        place: Any = start.composed.tree
        for part in section.split("."):
            place = place.get(part) if isinstance(place, DictConfig) else None
        if isinstance(place, DictConfig) and name in place and place[name] is None and f"{DATA}.{key}" not in given:
            options.append(f"{DATA}.{key}={what}")
    words = ["data", "prep", start.step.stage, "-c", arguments.config, *options]
    words += ["--trust-code"] if arguments.trust_code else []
    return f"{MAKE_IT}nemotron {start.run.family} {shlex.join(words)}{_there(start)}"


def _there(start: Start[Any]) -> str:
    """The words by which a command runs where this start would, and names its artifacts as this one does."""
    name = f" run.name={start.run.name}" if start.run.name != start.run.family else ""
    typed = [text for text in start.arguments.overrides if not isinstance(text, Said)]
    home = "".join(f" {shlex.quote(text)}" for text in typed if override_key(text) == "run.home")
    return name + home + (f" --batch {start.machine.profile}" if start.machine.profile else "")


class Recipe(NamedTuple):
    """A config file written for one family."""

    family: str
    file: Path


def recipes_of(composed: Composed) -> list[Recipe]:
    """Files written for one family, the last merged first.

    Excludes `default`, `tiny` and others for any family, and recorded values of runs, which name the family they
    happened to have.
    """
    found = []
    for file in reversed(composed.files):
        if file.stem == "default" or is_recorded(file):
            continue
        values = parsed(file, read_text(file))
        run = values.get("run") if isinstance(values, dict) else None
        family = run.get("family") if isinstance(run, dict) else None
        if isinstance(family, str) and "$" not in family:
            found.append(Recipe(family, file))
    return found


def of_another_family(start: Start[Any]) -> Iterator[Finding]:
    """A recipe, or a layout named by `engine=`, of another family than the run's."""
    family, overrides, recipes = start.run.family, start.arguments.overrides, recipes_of(start.composed)
    if recipes and recipes[0].family != family:
        other = recipes[0].family
        message = f"{recipes[0].file.name}: a recipe of the family {other}, and run.family is {family}"
        yield problem(message, f"say: {_same_command(start, other)}")
        return
    for other, file in recipes:
        if file.parent.name == "engine" and other != family:
            chosen = next((text for text in overrides if override_key(text) == "engine"), "engine")
            message = f"{chosen}: a layout of the family {other}, and run.family is {family}"
            yield problem(message, "leave it out: engine.world_size and the other sizes there set the layout")
            return


def _same_command(start: Start[Any], family: str) -> str:
    """The same command for another family."""
    step, arguments = start.step, start.arguments
    words = ["data", "prep", step.stage] if step.verb == "data_prep" else [step.stage]
    options = [text for text in arguments.overrides if override_key(text) != "run.family"]
    # a recipe with reasons for being experimental belongs to an experimental family
    flag = ["--allow-experimental"] if start.composed.tree.engine.get("experimental") else []
    return " ".join(["nemotron", family, *words, "-c", arguments.config, *options, *flag])


TOKENIZER_KEYS = ("data_prep.tokenizer.model", "model.tokenizer")
SOURCE, TOKENIZER, SEED = (f"{DATA}.{name}" for name in ("source", "tokenizer.model", "seed"))


@dataclass(frozen=True)
class DataChoice:
    """The data that the user's settings describe, such as `data_prep.source`.

    Attributes:
        given: those settings.
        artifact: prepared with them; None if there is none.
        problems: of a preparation with these settings: no such file, say.
        error: `run.data` is given too, and names data that was prepared differently, or none.
    """

    given: tuple[str, ...] = ()
    artifact: Artifact | None = None
    problems: tuple[Finding, ...] = ()
    error: UserError | None = None


def find_inputs(start: Start[Any], choice: DataChoice | None) -> dict[str, Input]:
    """Find all inputs, or only those the user names with --config-alone.

    Args:
        choice: the data that the user's settings describe; None without such settings, when `run.data` alone decides.
    """
    extra = (role for role in start.step.extra if getattr(start.run, role) is not None)
    roles = (*start.step.consumes, *start.step.optional, *extra)
    found = {role: _find_input(start, role, choice if role == "data" else None) for role in roles}
    if start.machine.sees_files or start.arguments.config_alone:
        return found
    return {
        role: _not_seen(role, getattr(start.run, role), one) for role, one in found.items()
    }  # the other machine has other files


def _not_seen(role: str, reference: str | None, found: Input) -> Input:
    """An input that another machine may have, even if it is missing here."""
    if reference is None:
        return found
    others = [finding for finding in found.findings if finding.level != "problem"]
    unseen = note(f"not seen from here: {role}, {reference}")
    return replace(found, shown=f"{reference} (not seen from here)", prepares=None, findings=(*others, unseen))


def is_looked_for(start: Start[Any], role: str) -> bool:
    """Whether an input is looked for: with --config-alone, only one that the user names."""
    return not start.arguments.config_alone or is_named(start, role)


def _find_input(start: Start[Any], role: str, choice: DataChoice | None) -> Input:
    """Find the artifact for a role; a missing one is prepared, left out, or a problem, as the config says."""
    reference = getattr(start.run, role)
    if reference is None:
        return Input()
    if not is_looked_for(start, role):
        return Input(shown=f"{reference} (not looked for)")
    if choice is not None and choice.problems:  # as the preparation says them
        return Input(shown=f"{reference} (cannot be used)", findings=choice.problems)
    notes: tuple[Finding, ...] = ()
    try:
        reference, said = spelled_out(reference, start.store, start.run.name, hub=role != "data")
        notes = (note(f"run.{role}: {said}"),) if said else ()
        found = _find_data(start, reference, choice) if role == "data" else _find_model(start, role, reference)
    except NotFound as error:  # missing, as opposed to damaged or unreadable, which must not be replaced silently
        found = _missing(start, role, reference, error)
    except UserError as error:
        found = _unusable(Input(), role, reference, error)
    return replace(found, findings=(*notes, *found.findings))


def _unusable(found: Input, role: str, reference: str, error: UserError) -> Input:
    """An input that is there and damaged, say."""
    why = problem(f"run.{role}: {error.message.removeprefix('run.data: ')}", error.remedy)
    return replace(found, shown=f"{reference} (cannot be used)", findings=(*found.findings, why))


def is_named(start: Start[Any], role: str) -> bool:
    """Whether the user names this input, on the command line or in their own file, as opposed to our configs."""
    file = start.composed.origins.get(f"run.{role}", "").partition(":")[0]
    folder = (start.step.directory / "config").resolve()
    return bool(file) and file not in {one.name for one in start.composed.files if one.parent == folder}


def _would_prepare(start: Start[Any]) -> bool:
    return start.run.missing_data == "prepare" and start.step.prepare is not None


def _missing(start: Start[Any], role: str, reference: str, error: NotFound) -> Input:
    """Replace a missing input or report it as a problem, which it always is if the user named it."""
    if not (start.machine.sees_files or start.arguments.config_alone):
        return Input(shown=reference)
    found = Input(shown=f"{reference} (missing{_instead(start, role)})")
    if is_path(reference):  # the user means this folder, so nothing can replace it
        remedy = "give a folder that is there"
    elif role != "data" and "/" in reference:  # a folder or a model on the hub is meant
        remedy = error.remedy
    elif is_named(start, role) and not (role == "data" and _is_next(start)):
        remedy = error.remedy or how_to_make(start, role)
    elif role == "data" and _would_prepare(start):
        return replace(found, prepares=f"[{reference}] not there yet")
    elif role == "model" and start.run.missing_model == "random":
        return replace(found, findings=(note(_random_weights(start, reference)),))
    elif role in start.step.optional:
        return found
    else:
        remedy = how_to_make(start, role)
        if remedy.startswith(MAKE_IT):
            before = pending(problem(f"run.{role}: {error.message}", remedy))
            return Input(shown=f"{reference} (missing)", findings=(before,))
    return Input(shown=f"{reference} (missing)", findings=(problem(f"run.{role}: {error.message}", remedy),))


def _random_weights(start: Start[Any], reference: str) -> str:
    """A training starts from random weights: a warning if it learns from answers alone, which are noise then."""
    told = f"[{reference}] not there: starting from random weights (run.missing_model=random)"
    if start.arguments.in_pipeline or not start.step.reinforces(start.composed.tree):
        return told
    stages, config = start.step.directory.parent, next(iter(bases(start)), "")
    everywhere = all((stages / stage / "config" / f"{config}.yaml").is_file() for stage in STAGES)
    whole = f"make it: nemotron {start.run.family} pipeline -c {config}{_there(start)} (or give run.model=FOLDER)"
    return (
        f"WARNING: {told}, which write noise, and there is nothing in noise for a reward to reinforce; "
        f"{whole if everywhere else how_to_make(start, 'model')}, "
        f"or name the store that holds one: run.home=FOLDER, or {HOME_VARIABLE}"
    )


def _instead(start: Start[Any], role: str) -> str:
    """What happens without this input; empty if the run cannot start."""
    if role in start.step.optional:
        return ": left out"
    if role == "data" and _would_prepare(start):
        return ": would be prepared first"
    if role == "model" and start.run.missing_model == "random":
        return ": would start from random weights"
    return ""


def _is_next(start: Start[Any]) -> bool:
    """Whether `run.data` is what data preparation would make next, named by the user or not."""
    run, prepare = start.run, start.step.prepare
    if prepare is None or run.data is None:
        return False
    try:
        return parse_reference(run.data, run.name) == Reference(prepare.artifact_name(run))
    except UserError:  # a folder's path
        return False


def _find_data(start: Start[Any], reference: str, choice: DataChoice | None) -> Input:
    """Find prepared data: the data of the user's settings, else the data that the reference names.

    Raises:
        UserError: it is missing, or something else.
    """
    if choice is not None and choice.error is not None:
        raise choice.error
    if choice is not None and choice.artifact is None:
        return _undescribed(start, choice)
    again, findings = how_to_make(start, "data", again=True), ()
    if choice is None or choice.artifact is None:
        found = start.store.resolve(reference, family=start.run.name, expect=start.step.row.data.type)
        if found.is_external and (found.path / "config.json").is_file():
            raise UserError(f"{reference}: a model's folder", "give prepared data, or leave run.data out")
    else:
        found, again = choice.artifact, how_to_prepare(start) + " --force"
        if found.manifest.version != start.store.versions(found.manifest.name)[-1]:
            findings = (note(f"[{found.reference}] is the data with {', '.join(choice.given)} as given here"),)
    data = Input(found, found.reference, findings=findings)
    try:
        require_intact(found, start.store.home, again)
    except UserError as error:
        return _unusable(data, "data", reference, error)
    return data


def _undescribed(start: Start[Any], choice: DataChoice) -> Input:
    """No data was prepared with the settings given here: prepare it first, or report it, as the config says."""
    settings, prepare = f"with {', '.join(choice.given)} as given here", start.step.prepare
    shown = f"(none {settings}{_instead(start, 'data')})"
    if _would_prepare(start) and prepare is not None:
        return Input(shown=shown, prepares=f"[{prepare.artifact_name(start.run)}] none {settings}")
    why = problem(f"run.data: no data was prepared {settings}", how_to_prepare(start))
    return Input(shown=shown, findings=(pending(why),))


def _find_model(start: Start[Any], role: str, reference: str) -> Input:
    """Find the model for a reference: in the store, in a folder, or one that a start would import first.

    Raises:
        UserError: it is missing, or cannot be imported.
    """
    store, outside, trusted = start.store, parse_outside(reference), start.arguments.trust_code
    kind: ArtifactType = "RewardModelArtifact" if role == REWARD_MODEL else "ModelArtifact"
    if outside is None:
        look_before_hashing(reference)
        artifact = store.resolve(reference, family=start.run.name, expect=kind)
        again, model = how_to_make(start, role, again=True), Input(artifact, artifact.reference)
    else:
        model = _brought(find(store, outside, weights=True, trusted=trusted))
        again = f"bring it in again: nemotron model import {reference}"
    if model.artifact is None:
        return model
    usable = replace(model, artifact=replace(model.artifact, trusted=trusted))
    try:
        require_intact(model.artifact, store.home, again)
        require_usable(reference, model.artifact, kind, trusted=trusted)
    except UserError as error:
        return _unusable(usable, role, reference, error)
    return usable


def _brought(found: Found) -> Input:
    """A model or tokenizer from outside, with its note, and the disk space that its import lacks."""
    findings = [note(found.note)] if found.note else []
    findings += [replace(found.no_room.finding, level="lacking")] if found.no_room else []
    return Input(found.artifact, found.shown, imported=found if found.bring_in else None, findings=tuple(findings))


def find_tokenizers(start: Start[Any], values: Mapping[str, Any]) -> Iterator[tuple[str, Input]]:
    """Find the folders for `hf://...`, `megatron:...` and `art://...` in tokenizer settings, by dotted key.

    Raises:
        UserError: one is missing or damaged.
    """
    for key in TOKENIZER_KEYS:
        if key.partition(".")[0] not in start.step.sections:
            continue  # the step's input is prepared data, which contains its tokenizer
        text: Any = values
        for name in key.split("."):
            text = text.get(name) if isinstance(text, Mapping) else None  # what is not a section, validation reports
        if not isinstance(text, str):
            continue
        if text.startswith(SCHEME):
            yield key, _find_stored(start, key, text)
        elif (outside := parse_outside(text)) is not None:
            found = find(start.store, outside, weights=False, trusted=start.arguments.trust_code)
            if found.artifact is not None:
                again = f"bring it in again: nemotron model import {text}"
                require_intact(found.artifact, start.store.home, again)
            yield key, _brought(found)


def _find_stored(start: Start[Any], key: str, text: str) -> Input:
    """The stored artifact whose tokenizer a setting names; without `art://` it would name a folder."""
    try:
        found = start.store.resolve(text, family=start.run.name)
        require_intact(found, start.store.home, f"restore {found.path} from a copy")
    except UserError as error:
        raise UserError(f"{key}: {error.message}", error.remedy) from error
    return Input(found, found.reference)


def trust_keys(start: Start[Any]) -> Iterator[Finding]:
    """What becomes of `trust_remote_code` in another program's config."""
    for key, origin in start.composed.trust_keys.items() if start.step.consumes else ():
        models = [found for role, found in start.inputs.items() if found is not None and role != "data"]
        if any(needs_code(config_of(found.path)) for found in models):
            how = "given" if start.arguments.trust_code else "only the command line can grant this"
            yield note(f"{origin}: {key} has no effect; {OPTION}: {how}")
        else:
            yield note(f"{origin}: {key} is not needed: transformers knows the model; no code of it runs")


def with_doubts(start: Start[Any]) -> dict[str, Input]:
    """The inputs, with a note wherever the latest one may not be the one the user means."""
    roles = {role for role in (*start.step.consumes, *start.step.optional) if not is_named(start, role)}
    return {role: _doubted(start, role, found) if role in roles else found for role, found in start.found.items()}


def _doubted(start: Start[Any], role: str, found: Input) -> Input:
    artifact = found.artifact
    if artifact is None or artifact.is_external:
        return found
    if role == "data":
        doubt = _other_data(start, artifact)
    else:
        tuned_on = _tuned_on(start.store, artifact)
        known = f"fine-tuned on {tuned_on}"
        other = f"another one: run.{role}={artifact.manifest.name}:vN"
        said = f"{role}: {artifact.reference} is the latest, {known}; {other}"
        doubt = (f"{artifact.reference} ({known})", said) if tuned_on else None
    return replace(found, shown=doubt[0], findings=(*found.findings, note(doubt[1]))) if doubt else found


def _other_data(start: Start[Any], data: Artifact) -> tuple[str, str] | None:
    """How data is shown that was not made as this config says, and the note about it; None for any other data."""
    config, store = start.config, start.store
    section = getattr(config, DATA, None)
    if config is None or not isinstance(section, Section) or data.manifest.producer.stage != start.step.stage:
        return None
    whats, _ = what_and_how({DATA: start.values[DATA]}, config)
    ours = redact_values(dict(flat(whats)))
    if ours.get(SOURCE) is None:  # the config leaves the choice of data to the user
        return None
    unlike = _unlike(store, data, ours)
    if not unlike:
        return None
    name = data.manifest.name
    older = (_loaded(store, Reference(name, version)) for version in reversed(store.versions(name)))
    fitting = next((one for one in older if one and _unlike(store, one, ours) == {}), None)
    prepare = how_to_prepare(start).removeprefix(MAKE_IT)
    own = f"name it: run.data={fitting.reference}" if fitting else f"prepare it: {prepare}"
    difference = _difference(unlike)
    return f"{data.reference} ({difference})", (
        f"WARNING: data: {data.reference} {difference}; for this config's own, {own}; "
        f"if you mean this one: run.data={data.reference}"
    )


def _difference(unlike: Mapping[str, tuple[Any, Any]]) -> str:
    key = SOURCE if SOURCE in unlike else next(iter(unlike))
    made, wanted = ("null" if value is None else str(value) for value in unlike[key])
    more = f" (and {len(unlike) - 1} more settings)" if len(unlike) > 1 and key != SOURCE else ""
    if key == SOURCE:
        return f"was made from {made}, not from {wanted} as this config says"
    return f"was made with {key}={made}, not {wanted} as this config says{more}"


def _unlike(store: Store, data: Artifact, ours: Mapping[str, Any]) -> dict[str, tuple[Any, Any]] | None:
    """Settings that data was made with differently, by key: its value, and ours; None if they were not recorded.

    A different seed does not count: trainings with several seeds share their data.
    """
    theirs = record_of(store, data)
    if SOURCE not in theirs:
        return None
    keys = [key for key in ours if key in theirs and key != SEED and theirs[key] != ours[key]]
    return {key: (theirs[key], ours[key]) for key in keys if key != TOKENIZER or not _may_be(ours[key], theirs[key])}


def _may_be(tokenizer: Any, recorded: Any) -> bool:
    """Whether a tokenizer from outside may be the recorded one, of which only the digest is known."""
    is_outside = isinstance(tokenizer, str) and parse_outside(tokenizer) is not None
    return is_outside and isinstance(recorded, str) and HEX_DIGEST.fullmatch(recorded) is not None


def record_of(store: Store, artifact: Artifact) -> dict[str, Any]:
    """Settings an artifact was made with, by dotted key; empty if the record of its run is gone."""
    digest = artifact.manifest.producer.config_digest
    folder = run_folder(store, artifact.manifest.name, digest)
    return (what_it_was(folder / WHAT) or {}).get("what", {}) if digest else {}


def _tuned_on(store: Store, model: Artifact) -> str | None:
    """The file that `nemotron finetune` trained a model on; None for any other model."""
    if fine_tuning_of(model.manifest.producer.command) is None:
        return None
    reference = next((parse_exact(one.reference) for one in model.manifest.parents if one.role == "data"), None)
    data = _loaded(store, reference) if reference else None
    return str((record_of(store, data) if data else {}).get(SOURCE, reference))


def _loaded(store: Store, reference: Reference) -> Artifact | None:
    """A version; None if it is missing, damaged or of an older layout."""
    with suppress(UserError):
        return store.resolve(reference)
    return None
