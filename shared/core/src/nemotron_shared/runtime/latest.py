"""Notes about inputs taken because they are the latest, when the config may mean others.

    WARNING: data: super3-pretrain-data:v2 was made from notes.txt, not from synthetic as this config says; ...
    model: super3-pretrain-model:v2 is the latest, fine-tuned on notes.txt; another one: run.model=NAME:vN

Settings of earlier runs are read from their records; without a record, no note is given.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.fine_tunings import fine_tuning_of
from nemotron_shared.artifacts.housekeeping import run_folder
from nemotron_shared.artifacts.manifest import HEX_DIGEST
from nemotron_shared.artifacts.names import Reference, parse_exact
from nemotron_shared.config.schema import Section
from nemotron_shared.errors import UserError
from nemotron_shared.redaction import redact_values
from nemotron_shared.runtime.arguments import Arguments
from nemotron_shared.runtime.attempts import WHAT, what_it_was
from nemotron_shared.runtime.identity import flat, what_and_how
from nemotron_shared.runtime.inputs import is_named
from nemotron_shared.runtime.models.references import parse_outside
from nemotron_shared.runtime.remedies import SECTION, how_to_prepare

if TYPE_CHECKING:
    from nemotron_shared.runtime.preflight import Preflight
    from nemotron_shared.runtime.step import Step

SOURCE, TOKENIZER, SEED = (f"{SECTION}.{name}" for name in ("source", "tokenizer.model", "seed"))


def tell_latest(checked: "Preflight", step: "Step", arguments: Arguments) -> None:
    """Add a note wherever the latest input may not be the one the user means."""
    for role in (*step.consumes, *step.optional):
        found = checked.inputs.get(role)
        if found is None or found.is_external or is_named(checked, step, role):
            continue
        if role == "data":
            _tell_data(checked, step, arguments, found)
        elif tuned_on := _tuned_on(checked.store, found):
            known = f"fine-tuned on {tuned_on}"
            checked.shown[role] = f"{found.reference} ({known})"
            other = f"another one: run.{role}={found.manifest.name}:vN"
            checked.notes.append(f"{role}: {found.reference} is the latest, {known}; {other}")


def _tell_data(checked: "Preflight", step: "Step", arguments: Arguments, data: Artifact) -> None:
    config, store = checked.config, checked.store
    section = getattr(config, SECTION, None)
    if config is None or not isinstance(section, Section) or data.manifest.producer.stage != step.stage:
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
    prepare = how_to_prepare(step, checked.run, arguments, checked.composed).removeprefix("make it: ")
    own = f"name it: run.data={fitting.reference}" if fitting else f"prepare it: {prepare}"
    checked.shown["data"] = f"{data.reference} (WARNING: {_said(unlike)})"
    checked.notes.append(
        f"WARNING: data: {data.reference} {_said(unlike)}; for this config's own, {own}; "
        f"if you mean this one: run.data={data.reference}"
    )


def _said(unlike: Mapping[str, tuple[Any, Any]]) -> str:
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
    theirs = _record(store, data)
    if SOURCE not in theirs:
        return None
    keys = [key for key in ours if key in theirs and key != SEED and theirs[key] != ours[key]]
    return {key: (theirs[key], ours[key]) for key in keys if key != TOKENIZER or not _may_be(ours[key], theirs[key])}


def _may_be(tokenizer: Any, recorded: Any) -> bool:
    """Whether a tokenizer from outside may be the recorded one, of which only the digest is known."""
    is_outside = isinstance(tokenizer, str) and parse_outside(tokenizer) is not None
    return is_outside and isinstance(recorded, str) and HEX_DIGEST.fullmatch(recorded) is not None


def _record(store: Store, artifact: Artifact) -> dict[str, Any]:
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
    return str((_record(store, data) if data else {}).get(SOURCE, reference))


def _loaded(store: Store, reference: Reference) -> Artifact | None:
    """A version; None if it is missing, damaged or of an older layout."""
    with suppress(UserError):
        return store.resolve(reference)
    return None
