"""Find and verify a model the user names: in the store, in a folder, on the hub or in a checkpoint.

find_model(store, "sft", family="super3", trusted=False)          super3-sft-model, its newest version
find_model(store, None, family="super3", trusted=False)           the newest model in the store
find_model(store, "hf://org/name", family="super3", trusted=False) imported first if it is not there yet
"""

from dataclasses import replace
from pathlib import Path

from nemotron_shared.artifacts import Artifact, ArtifactType, Store
from nemotron_shared.artifacts.artifact import folder_at
from nemotron_shared.artifacts.manifest import MANIFEST
from nemotron_shared.artifacts.names import SHORT_NAMES, is_path, parse_reference, prefix_of
from nemotron_shared.artifacts.store import require_kind
from nemotron_shared.artifacts.verified import remove_and_make, require_intact
from nemotron_shared.families import families
from nemotron_shared.models.folder import (
    config_of,
    model_type,
    needs_code,
    require_loadable,
    require_own_files,
    require_small,
)
from nemotron_shared.models.importing import find
from nemotron_shared.models.references import parse_outside, spelled_out
from nemotron_shared.models.weights import WEIGHTS, require_whole
from nemotron_shared.system.console import say
from nemotron_shared.system.errors import UserError


def find_model(store: Store, reference: str | None, *, family: str, trusted: bool) -> Artifact:
    """The model for a reference; without one, the newest in the store.

    Raises:
        UserError: it is missing or damaged, or needs code that is not trusted.
    """
    if reference is not None:
        reference, note = spelled_out(reference, store, family)
        if note:
            say(note)
    outside = None if reference is None else parse_outside(reference)
    if outside is not None:
        found = find(store, outside, weights=True, trusted=trusted)
        if found.no_room:
            raise found.no_room
        if found.note:
            say(found.note)
        artifact = found.bring_in() if found.bring_in else found.artifact
        assert artifact is not None
    elif reference is None:
        artifact = newest_model(store)
    else:
        look_before_hashing(reference)
        reference = by_its_stage(reference, store, family)
        artifact = store.resolve(reference, family=family, expect="ModelArtifact")
    again = f"bring it in again: nemotron model import {reference}" if outside else remove_and_make(artifact)
    require_intact(artifact, store.home, again)
    require_usable(reference or artifact.reference, artifact, "ModelArtifact", trusted=trusted)
    return replace(artifact, trusted=trusted)


def by_its_stage(text: str, store: Store, family: str) -> str:
    """`qwen3-sft-model:v2` for `sft:v2`, with a line saying so, in a store whose only results of SFT are of that name.

    Models of other families are never meant: `sft` of Nano 3 is not Super 3's.
    """
    word, colon, version = text.partition(":")
    if word not in SHORT_NAMES or store.versions(parse_reference(word, family).name):
        return text
    own = [
        name for name in store.names() if name.endswith(f"-{SHORT_NAMES[word]}") and prefix_of(name) not in families()
    ]
    if len(own) != 1:
        return text
    say(f"{text}: taken as {own[0]}{colon}{version}, the only one of that stage here")
    return f"{own[0]}{colon}{version}"


def newest_model(store: Store) -> Artifact:
    """The most recently made model of any name, ignoring unreadable versions."""
    made = list(store.readable("ModelArtifact"))
    if not made:
        what = f"no model in {store.root}"
        raise UserError(what, "make one: nemotron super3 pipeline -c tiny; or name one: a folder, or hf://org/name")
    return max(made, key=lambda one: (one.manifest.created_at, one.manifest.name, one.manifest.version))


def look_before_hashing(reference: str) -> None:
    """Refuse an external folder with incomplete weights before hashing all of it, which may take hours.

    Raises:
        UserError: no such folder, or its headers show that it is unusable.
    """
    if not is_path(reference):
        return
    folder = folder_at(Path(reference))
    if not (folder / MANIFEST).exists():
        require_own_files(folder)
        require_small(folder)
        require_whole(reference, folder, config_of(folder))


def require_usable(label: str, artifact: Artifact, kind: ArtifactType, *, trusted: bool) -> None:
    """Refuse a folder without weights, another kind of model, links out of it, incomplete weights, and untrusted code.

    Args:
        kind: `ModelArtifact` for a language model, or `RewardModelArtifact`.

    Raises:
        UserError: with a remedy.
    """
    if artifact.is_external and not any("/" in name or name.endswith(WEIGHTS) for name in artifact.manifest.files):
        raise UserError(f"{label}: holds no weights", "give the folder that holds config.json and *.safetensors")
    if artifact.is_external:
        require_own_files(artifact.path)
    require_small(artifact.path)
    config = config_of(artifact.path)
    if config:
        require_kind(label, model_type(config), kind)
    if artifact.is_external or artifact.manifest.producer.verb == "import":
        require_whole(label, artifact.path, config)
    if needs_code(config):  # a type unknown here may be known in the engine's own environment
        require_loadable(label, config, trusted=trusted)
