"""Find a step's inputs for its checks: in the store, in a folder or on the hub; or what replaces a missing one.

Inputs that are taken because they are the latest get a note where the config may mean others:

    WARNING: data: super3-pretrain-data:v2 was made from notes.txt, not from synthetic as this config says; ...
    model: super3-pretrain-model:v2 is the latest, fine-tuned on notes.txt; another one: run.model=NAME:vN

Settings of earlier runs are read from their records; without a record, no note is given.
"""

from collections.abc import Mapping
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
from nemotron_shared.artifacts.verified import require_intact
from nemotron_shared.config.compose import Composed
from nemotron_shared.config.files import parsed, read_text
from nemotron_shared.config.overrides import flat, override_key
from nemotron_shared.config.schema import Section
from nemotron_shared.families import families
from nemotron_shared.models.finding import look_before_hashing, require_usable
from nemotron_shared.models.folder import OPTION, config_of, needs_code
from nemotron_shared.models.importing import Found, find
from nemotron_shared.models.references import parse_outside, spelled_out
from nemotron_shared.stages import STAGES
from nemotron_shared.step.records import WHAT, is_recorded, what_and_how, what_it_was
from nemotron_shared.step.start import Preflight
from nemotron_shared.system.errors import NotFound, UserError
from nemotron_shared.system.redaction import redact_values

SECTION = "data_prep"
REWARD_MODEL = "reward_model"
"""The role of a model that scores answers; the models of all other roles write them."""
REQUIRED = {"source": "FILE", "tokenizer.model": "FOLDER"}
"""Data preparation settings that a config may leave to the user."""


def how_to_make(checked: Preflight, role: str, *, again: bool = False) -> str:
    """The command that makes a missing input or, with `again`, a damaged one."""
    step, family = checked.step, checked.run.family
    force = " --force" if again else ""
    if role == "data":
        return how_to_prepare(checked) + force
    if role in step.extra:
        return f"give run.{role}=NAME:vN, or a folder"
    before = STAGES[step.stage].before or step.stage
    known = [file.stem for file in (step.directory.parent / before / "config").glob("*.yaml")]
    # the other stage's config of the same name, else the first phase of the family's recipe; a later phase of the
    # same stage starts from an earlier one, which its own command would not make
    recipes = sorted((name for name in known if name.startswith(family)), key=lambda name: (len(name), name))
    same = () if before == step.stage else (checked.start.arguments.config,)
    name = next((name for name in (*same, family, *recipes) if name in known), None)
    hub = families()[family].hub if family in families() else None
    given = f"give run.{role}={f'hf://{hub}, or a ' if hub else ''}FOLDER"
    return f"make it: nemotron {family} {before} -c {name}{force} (or {given})" if name else given


def how_to_prepare(checked: Preflight) -> str:
    """The command that prepares the data these settings describe; FILE and FOLDER stand for the user's choice."""
    arguments = checked.start.arguments
    options = [text for text in arguments.overrides if override_key(text).split(".")[0] == SECTION]
    given = {override_key(text) for text in options}
    for key, what in REQUIRED.items():
        section, _, name = f"{SECTION}.{key}".rpartition(".")
        place: Any = checked.composed.tree
        for part in section.split("."):
            place = place.get(part) if isinstance(place, DictConfig) else None
        if isinstance(place, DictConfig) and name in place and place[name] is None and f"{SECTION}.{key}" not in given:
            options.append(f"{SECTION}.{key}={what}")
    words = ["data prep", checked.step.stage, "-c", arguments.config, *options]
    return " ".join(["make it: nemotron", checked.run.family, *words])


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


def of_another_family(checked: Preflight, recipes: list[Recipe]) -> UserError | None:
    """The error for a recipe, or a layout named by `engine=`, of another family than the run's."""
    family, overrides = checked.run.family, checked.start.arguments.overrides
    if recipes and recipes[0].family != family:
        other = recipes[0].family
        message = f"{recipes[0].file.name}: a recipe of the family {other}, and run.family is {family}"
        return UserError(message, f"say: {_same_command(checked, other)}")
    for other, file in recipes:
        if file.parent.name == "engine" and other != family:
            chosen = next((text for text in overrides if override_key(text) == "engine"), "engine")
            message = f"{chosen}: a layout of the family {other}, and run.family is {family}"
            return UserError(message, "leave it out: engine.world_size and the other sizes there set the layout")
    return None


def _same_command(checked: Preflight, family: str) -> str:
    """The same command for another family."""
    step, arguments = checked.step, checked.start.arguments
    words = ["data", "prep", step.stage] if step.verb == "data_prep" else [step.stage]
    options = [text for text in arguments.overrides if override_key(text) != "run.family"]
    # a recipe with reasons for being experimental belongs to an experimental family
    flag = ["--allow-experimental"] if checked.composed.tree.engine.get("experimental") else []
    return " ".join(["nemotron", family, *words, "-c", arguments.config, *options, *flag])


TOKENIZER_KEYS = ("data_prep.tokenizer.model", "model.tokenizer")
SOURCE, TOKENIZER, SEED = (f"{SECTION}.{name}" for name in ("source", "tokenizer.model", "seed"))


@dataclass(frozen=True)
class DataChoice:
    """The data settings given by the user, such as `data_prep.source`, and the artifact they describe."""

    given: list[str]
    artifact: Artifact | None


def find_inputs(checked: Preflight, choice: "DataChoice | UserError | list[UserError] | None") -> None:
    """Find all inputs, or only those the user names with --config-alone.

    Args:
        choice: the data that the user's settings describe, why it cannot be told, or why it cannot be prepared.
    """
    extra = (role for role in checked.step.extra if getattr(checked.run, role) is not None)
    for role in (*checked.step.consumes, *checked.step.optional, *extra):
        if is_looked_for(checked, role):
            _find_input(checked, role, choice if role == "data" else None)
        else:
            reference = getattr(checked.run, role)
            checked.inputs[role], checked.shown[role] = None, reference and f"{reference} (not looked for)"
    if not checked.machine.sees_files and not checked.start.arguments.config_alone:
        # the other machine has other files
        checked.notes += [f"not looked for from here: {role}, {text}" for role, text in checked.shown.items() if text]
        checked.problems, checked.prepares = [], None


def is_looked_for(checked: Preflight, role: str) -> bool:
    """Whether an input is looked for: with --config-alone, only one that the user names."""
    return not checked.start.arguments.config_alone or is_named(checked, role)


def use_prepared(checked: Preflight, data: Artifact) -> None:
    """Take data that was just prepared as the input."""
    checked.inputs["data"], checked.shown["data"], checked.prepares = data, data.reference, None


def _find_input(checked: Preflight, role: str, choice: "DataChoice | UserError | list[UserError] | None") -> None:
    """Find the artifact for a role; a missing one is prepared, left out, or a problem, as the config says."""
    run, store, shown = checked.run, checked.store, checked.shown
    reference = getattr(run, role)
    checked.inputs[role] = shown[role] = None
    if reference is None:
        return
    if isinstance(choice, list):
        shown[role] = f"{reference} (cannot be used)"
        checked.problems += choice  # as the preparation says them: checks of the same config may say them again
        return
    again = how_to_make(checked, role, again=True)
    try:
        reference, note = spelled_out(reference, store, run.family, hub=role != "data")
        checked.notes += [f"run.{role}: {note}"] if note else []
        if isinstance(choice, UserError):
            raise choice
        if role != "data":
            _find_model(checked, role, reference, again)
        elif choice is not None and choice.artifact is None:
            _note_undescribed(checked, choice)
        else:
            found = choice.artifact if choice else None
            if choice is not None and found is not None:
                again = how_to_prepare(checked) + " --force"
                if found.manifest.version != store.versions(found.manifest.name)[-1]:
                    checked.notes.append(
                        f"[{found.reference}] is the data with {', '.join(choice.given)} as given here"
                    )
            found = found or _find_data(checked, reference)
            checked.inputs[role], shown[role] = found, found.reference
            require_intact(found, store.home, again)
    except NotFound as error:  # missing, as opposed to damaged or unreadable, which must not be replaced silently
        _note_missing(checked, role, reference, error)
    except UserError as error:
        shown[role] = f"{reference} (cannot be used)"
        checked.problems.append(UserError(f"run.{role}: {error.message.removeprefix('run.data: ')}", error.remedy))


def is_named(checked: Preflight, role: str) -> bool:
    """Whether the user names this input, on the command line or in their own file, as opposed to our configs."""
    file = checked.composed.origins.get(f"run.{role}", "").partition(":")[0]
    folder = (checked.step.directory / "config").resolve()
    return bool(file) and file not in {one.name for one in checked.composed.files if one.parent == folder}


def _would_prepare(checked: Preflight) -> bool:
    return checked.run.missing_data == "prepare" and checked.step.prepare is not None


def _note_undescribed(checked: Preflight, choice: DataChoice) -> None:
    """No data was prepared with the settings given here: prepare it first, or report it, as the config says."""
    settings, prepare = f"with {', '.join(choice.given)} as given here", checked.step.prepare
    checked.shown["data"] = f"(none {settings}{_instead(checked, 'data')})"
    if _would_prepare(checked) and prepare is not None:
        checked.prepares = f"[{prepare.artifact_name(checked.run)}] none {settings}"
    else:
        checked.problems.append(UserError(f"run.data: no data was prepared {settings}", how_to_prepare(checked)))


def _note_missing(checked: Preflight, role: str, reference: str, error: NotFound) -> None:
    """Replace a missing input or report it as a problem, which it always is if the user named it."""
    checked.shown[role] = f"{reference} (missing{_instead(checked, role)})"
    remedy = None
    if is_path(reference):  # the user means this folder, so nothing can replace it
        remedy = "give a folder that is there"
    elif role != "data" and "/" in reference:  # a folder or a model on the hub is meant
        remedy = error.remedy
    elif is_named(checked, role) and not (role == "data" and _is_next(checked)):
        remedy = error.remedy or how_to_make(checked, role)
    elif role == "data" and _would_prepare(checked):
        checked.prepares = f"[{reference}] not there yet"
    elif role == "model" and checked.run.missing_model == "random":
        checked.notes.append(f"[{reference}] not there: starting from random weights (run.missing_model=random)")
    elif role not in checked.step.optional:
        remedy = how_to_make(checked, role)
    if remedy:
        checked.shown[role] = f"{reference} (missing)"
        checked.problems.append(UserError(f"run.{role}: {error.message}", remedy))


def _instead(checked: Preflight, role: str) -> str:
    """What happens without this input; empty if the run cannot start."""
    if role in checked.step.optional:
        return ": left out"
    if role == "data" and _would_prepare(checked):
        return ": would be prepared first"
    if role == "model" and checked.run.missing_model == "random":
        return ": would start from random weights"
    return ""


def _is_next(checked: Preflight) -> bool:
    """Whether `run.data` is what data preparation would make next, named by the user or not."""
    run, prepare = checked.run, checked.step.prepare
    if prepare is None or run.data is None:
        return False
    try:
        return parse_reference(run.data, run.family) == Reference(prepare.artifact_name(run))
    except UserError:  # a folder's path
        return False


def _find_data(checked: Preflight, reference: str) -> Artifact:
    expected = STAGES[checked.step.stage].data.type
    found = checked.store.resolve(reference, family=checked.run.family, expect=expected)
    if found.is_external and (found.path / "config.json").is_file():
        raise UserError(f"{reference}: a model's folder", "give prepared data, or leave run.data out")
    return found


def _find_model(checked: Preflight, role: str, reference: str, again: str) -> None:
    """Find the model for a reference: in the store, in a folder, or one that a start would import first.

    Raises:
        UserError: it is missing or damaged, or needs code that is not trusted.
    """
    store, outside, trusted = checked.store, parse_outside(reference), checked.start.arguments.trust_code
    kind: ArtifactType = "RewardModelArtifact" if role == REWARD_MODEL else "ModelArtifact"
    if outside is None:
        look_before_hashing(reference)
        artifact: Artifact | None = store.resolve(reference, family=checked.run.family, expect=kind)
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
    require_usable(reference, artifact, kind, trusted=trusted)


def _take(checked: Preflight, found: Found) -> None:
    """Record the notes, the missing disk space and the pending import of a model from outside."""
    checked.notes += [found.note] if found.note else []
    checked.lacking += [found.no_room] if found.no_room else []
    checked.imports += [found] if found.bring_in else []


def find_tokenizers(checked: Preflight) -> bool:
    """Replace `hf://...`, `megatron:...` and `art://...` in tokenizer settings by the folder they refer to.

    Returns:
        False if the folder is known only after an import.
    """
    for key in TOKENIZER_KEYS:
        *sections, name = key.split(".")
        if sections[0] not in checked.step.sections:
            continue  # the step's input is prepared data, which contains its tokenizer
        place: Any = checked.values
        for section in sections:
            place = place.get(section) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            continue  # reported by validation
        text = place.get(name)
        if isinstance(text, str) and text.startswith(SCHEME):
            place[name] = str(_find_stored(checked, key, text).path)
            continue
        wanted = parse_outside(text) if isinstance(text, str) else None
        if wanted is None:
            continue
        found = find(checked.store, wanted, weights=False, trusted=checked.start.arguments.trust_code)
        _take(checked, found)
        checked.inputs["tokenizer"], checked.shown["tokenizer"] = found.artifact, found.shown
        if found.artifact is None:
            return False
        require_intact(found.artifact, checked.store.home, f"bring it in again: nemotron model import {text}")
        place[name] = str(found.artifact.path)
    return True


def _find_stored(checked: Preflight, key: str, text: str) -> Artifact:
    """The stored artifact whose tokenizer a setting names; without `art://` it would name a folder."""
    try:
        found = checked.store.resolve(text, family=checked.run.family)
        require_intact(found, checked.store.home, f"restore {found.path} from a copy")
    except UserError as error:
        raise UserError(f"{key}: {error.message}", error.remedy) from error
    checked.inputs["tokenizer"], checked.shown["tokenizer"] = found, found.reference
    return found


def answer_trust_keys(checked: Preflight) -> None:
    """Explain what happens to `trust_remote_code` in another program's config."""
    for key, origin in checked.composed.trust_keys.items() if checked.step.consumes else ():
        models = [found for role, found in checked.inputs.items() if found is not None and role != "data"]
        if any(needs_code(config_of(found.path)) for found in models):
            trusted = checked.start.arguments.trust_code
            how = "given" if trusted else "only the command line can grant this"
            checked.notes.append(f"{origin}: {key} has no effect; {OPTION}: {how}")
        else:
            checked.notes.append(f"{origin}: {key} is not needed: transformers knows the model; no code of it runs")


def note_latest(checked: Preflight) -> None:
    """Add a note wherever the latest input may not be the one the user means."""
    for role in (*checked.step.consumes, *checked.step.optional):
        found = checked.inputs.get(role)
        if found is None or found.is_external or is_named(checked, role):
            continue
        if role == "data":
            _note_other_data(checked, found)
        elif tuned_on := _tuned_on(checked.store, found):
            known = f"fine-tuned on {tuned_on}"
            checked.shown[role] = f"{found.reference} ({known})"
            other = f"another one: run.{role}={found.manifest.name}:vN"
            checked.notes.append(f"{role}: {found.reference} is the latest, {known}; {other}")


def _note_other_data(checked: Preflight, data: Artifact) -> None:
    config, store = checked.config, checked.store
    section = getattr(config, SECTION, None)
    if config is None or not isinstance(section, Section) or data.manifest.producer.stage != checked.step.stage:
        return
    whats, _ = what_and_how({SECTION: checked.values[SECTION]}, config)
    ours = redact_values(dict(flat(whats)))
    if ours.get(SOURCE) is None:  # the config leaves the choice of data to the user
        return
    unlike = _unlike(store, data, ours)
    if not unlike:
        return
    name = data.manifest.name
    older = (_loaded(store, Reference(name, version)) for version in reversed(store.versions(name)))
    fitting = next((one for one in older if one and _unlike(store, one, ours) == {}), None)
    prepare = how_to_prepare(checked).removeprefix("make it: ")
    own = f"name it: run.data={fitting.reference}" if fitting else f"prepare it: {prepare}"
    difference = _difference(unlike)
    checked.shown["data"] = f"{data.reference} (WARNING: {difference})"
    checked.notes.append(
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
