"""Find a step's inputs for its checks: in the store, in a folder or on the hub; or what replaces a missing one."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.names import SCHEME, Reference, is_path, parse_reference
from nemotron_shared.artifacts.verified import require_intact
from nemotron_shared.config.schema import RunSection
from nemotron_shared.errors import NotFound, UserError
from nemotron_shared.runtime.arguments import Arguments
from nemotron_shared.runtime.data_choice import data_by_settings
from nemotron_shared.runtime.models.finding import look_before_hashing, require_usable
from nemotron_shared.runtime.models.folder import OPTION, config_of, needs_code
from nemotron_shared.runtime.models.importing import Found, find
from nemotron_shared.runtime.models.references import parse_outside, spelled_out
from nemotron_shared.runtime.remedies import SECTION, how_to_make, how_to_prepare
from nemotron_shared.stages import STAGES

if TYPE_CHECKING:
    from nemotron_shared.runtime.preflight import Preflight
    from nemotron_shared.runtime.step import Step

TOKENIZER_KEYS = ("data_prep.tokenizer.model", "model.tokenizer")


def find_input(checked: "Preflight", step: "Step", role: str, arguments: Arguments, prepared: Artifact | None) -> None:
    """Find the artifact for a role; a missing one is prepared, left out, or a problem, as the config says."""
    run, store, shown = checked.run, checked.store, checked.shown
    reference = getattr(run, role)
    checked.inputs[role] = shown[role] = None
    if reference is None:
        return
    again = how_to_make(step, role, run, arguments, checked.composed, again=True)
    try:
        reference, note = spelled_out(reference, store, run.family, hub=role != "data")
        checked.notes += [f"run.{role}: {note}"] if note else []
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
        found = found or _find_data(store, reference, step, run.family)
        checked.inputs[role], shown[role] = found, found.reference
        require_intact(found, store.home, again)
    except NotFound as error:  # missing, as opposed to damaged or unreadable, which must not be replaced silently
        _note_missing(checked, step, role, reference, arguments, error)
    except UserError as error:
        shown[role] = f"{reference} (cannot be used)"
        # an error about a data setting already starts with its key
        said = f"run.{role}: {error.message.removeprefix('run.data: ')}"
        is_setting = error.message.startswith(f"{SECTION}.")
        checked.problems.append(error if is_setting else UserError(said, error.remedy))


def is_named(checked: "Preflight", step: "Step", role: str) -> bool:
    """Whether the user names this input, on the command line or in their own file, as opposed to our configs."""
    file = checked.composed.origins.get(f"run.{role}", "").partition(":")[0]
    own = {one.name for one in checked.composed.files if one.parent == (step.directory / "config").resolve()}
    return bool(file) and file not in own


def _note_missing(
    checked: "Preflight", step: "Step", role: str, reference: str, arguments: Arguments, error: NotFound
) -> None:
    """Replace a missing input or report it as a problem, which it always is if the user named it."""
    run = checked.run
    checked.shown[role] = f"{reference} (missing{_instead(step, role, run)})"
    remedy = None
    if is_path(reference):  # the user means this folder, so nothing can replace it
        remedy = "give a folder that is there"
    elif role != "data" and "/" in reference:  # a folder or a model on the hub is meant
        remedy = error.remedy
    elif is_named(checked, step, role) and not _is_prepared(step, role, run):
        remedy = error.remedy or how_to_make(step, role, run, arguments, checked.composed)
    elif role == "data" and run.missing_data == "prepare" and step.prepare is not None:
        checked.prepares = f"[{reference}] not there yet"
    elif role == "model" and run.missing_model == "random":
        checked.notes.append(f"[{reference}] not there: starting from random weights (run.missing_model=random)")
    elif role not in step.optional:
        remedy = how_to_make(step, role, run, arguments, checked.composed)
    if remedy:
        checked.shown[role] = f"{reference} (missing)"
        checked.problems.append(UserError(f"run.{role}: {error.message}", remedy))


def _is_prepared(step: "Step", role: str, run: RunSection) -> bool:
    """Whether the input is what data preparation would make next, named by the user or not."""
    if role != "data" or step.prepare is None or run.data is None:
        return False
    try:
        return parse_reference(run.data, run.family) == Reference(step.prepare.produces.format(family=run.family))
    except UserError:  # a folder's path
        return False


def _find_data(store: Store, reference: str, step: "Step", family: str) -> Artifact:
    found = store.resolve(reference, family=family, expect=STAGES[step.stage].data.type)
    if found.is_external and (found.path / "config.json").is_file():
        raise UserError(f"{reference}: a model's folder", "give prepared data, or leave run.data out")
    return found


def _find_model(checked: "Preflight", role: str, reference: str, again: str, *, trusted: bool) -> None:
    """Find the model for a reference: in the store, in a folder, or one that a start would import first.

    Raises:
        UserError: it is missing or damaged, or needs code that is not trusted.
    """
    store, outside = checked.store, parse_outside(reference)
    if outside is None:
        look_before_hashing(reference)
        artifact: Artifact | None = store.resolve(reference, family=checked.run.family, expect="ModelArtifact")
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
    require_usable(reference, artifact, trusted=trusted)


def _take(checked: "Preflight", found: Found) -> None:
    """Record the notes, the missing disk space and the pending import of a model from outside."""
    checked.notes += [found.note] if found.note else []
    checked.lacking += [found.no_room] if found.no_room else []
    checked.imports += [found] if found.bring_in else []


def find_tokenizers(checked: "Preflight", step: "Step", *, trusted: bool) -> bool:
    """Replace `hf://...`, `megatron:...` and `art://...` in tokenizer settings by the folder they refer to.

    Returns:
        False if the folder is known only after an import.
    """
    for key in TOKENIZER_KEYS:
        *sections, name = key.split(".")
        if sections[0] not in step.sections:
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
        found = find(checked.store, wanted, weights=False, trusted=trusted)
        _take(checked, found)
        checked.inputs["tokenizer"], checked.shown["tokenizer"] = found.artifact, found.shown
        if found.artifact is None:
            return False
        require_intact(found.artifact, checked.store.home, f"bring it in again: nemotron model import {text}")
        place[name] = str(found.artifact.path)
    return True


def _find_stored(checked: "Preflight", key: str, text: str) -> Artifact:
    """The stored artifact whose tokenizer a setting names; without `art://` it would name a folder."""
    try:
        found = checked.store.resolve(text, family=checked.run.family)
        require_intact(found, checked.store.home, f"restore {found.path} from a copy")
    except UserError as error:
        raise UserError(f"{key}: {error.message}", error.remedy) from error
    checked.inputs["tokenizer"], checked.shown["tokenizer"] = found, found.reference
    return found


def answer_trust_keys(checked: "Preflight", step: "Step", *, trusted: bool) -> None:
    """Explain what happens to `trust_remote_code` in another program's config."""
    for key, origin in checked.composed.trust_keys.items() if step.consumes else ():
        models = [found for role, found in checked.inputs.items() if found is not None and role != "data"]
        if any(needs_code(config_of(found.path)) for found in models):
            how = "given" if trusted else "what it asks for is said on the command line"
            checked.notes.append(f"{origin}: {key} counts for nothing; {OPTION}: {how}")
        else:
            checked.notes.append(f"{origin}: {key} is not needed: transformers knows the model; no code of it runs")


def _instead(step: "Step", role: str, run: RunSection) -> str:
    """What happens without this input; empty if the run cannot start."""
    if role in step.optional:
        return ": left out"
    if role == "data" and run.missing_data == "prepare" and step.prepare is not None:
        return ": would be prepared first"
    if role == "model" and run.missing_model == "random":
        return ": would start from random weights"
    return ""
