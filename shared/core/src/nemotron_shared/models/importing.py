"""Import models as artifacts: reuse an earlier import, or inspect and import the model.

    found = find(store, HubModel("org/name"), weights=True, trusted=False)
    found.artifact          the version pinned in the store, or what an import would make
    found.bring_in          imports it; None if it is there already

The first use of `hf://org/name` pins the commit it resolves to. Later uses take that commit without asking the hub;
`nemotron model import hf://org/name` asks the hub again.
"""

import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemotron_shared.artifacts import Artifact, ArtifactType, Producer, Source, Store
from nemotron_shared.artifacts.artifact import file_table, table_digest
from nemotron_shared.artifacts.store import STAGING
from nemotron_shared.artifacts.verified import CACHE, known_digests
from nemotron_shared.machine.environments import environment_of
from nemotron_shared.models.finite import require_finite
from nemotron_shared.models.folder import (
    MORE_TEMPLATES,
    config_of,
    is_blob,
    model_type,
    require_inside,
    require_loadable,
    require_small,
)
from nemotron_shared.models.hub import MODEL_FILES, TOKENIZER_FILES, Look, fetch, look_at
from nemotron_shared.models.references import MAIN, TOKENIZER, HubModel, MegatronModel, artifact_name
from nemotron_shared.models.weights import WEIGHTS, require_whole
from nemotron_shared.stages import products
from nemotron_shared.system.atomic import copy_content, link_or_copy
from nemotron_shared.system.console import say
from nemotron_shared.system.digest import json_digest
from nemotron_shared.system.disk import size
from nemotron_shared.system.errors import UserError, printable
from nemotron_shared.system.file_cache import FileCache
from nemotron_shared.system.lock import locked
from nemotron_shared.system.versions import environment, package_version

# Publish an import once: concurrent processes wait for it and reuse the result.
#
# with made_once(store, "my-model", "./folder"), staging(store, "my-model") as folder:
#     made = made_from(store, "my-model", source)        # by another process, just now or long ago
#     ...                                                # fetch, convert or copy into the folder
#     publish(store, folder, "my-model", source, "ModelArtifact", producer(...), "./folder")

LOCKS = Path("cache", "imports")


@contextmanager
def made_once(store: Store, name: str, reference: str) -> Generator[None]:
    """Let one process at a time make versions of a name, across all machines that share the store."""
    locks = store.home / LOCKS
    locks.mkdir(parents=True, exist_ok=True)
    waiting = f"[{reference}] another process brings it in: waiting for that"
    with locked(locks / f"{name}.lock", wait=True, announce=lambda: say(waiting)):
        yield


def made_from(store: Store, name: str, source: Source) -> Artifact | None:
    """The version made from the same content, if it is intact."""
    made = store.find_by_fingerprint(name, _fingerprint(source))
    return made if made is not None and not store.verify(made) else None


@contextmanager
def staging(store: Store, name: str) -> Generator[Path]:
    """A temporary folder on the store's own file system, so publishing is one rename."""
    place = store.root / STAGING
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=place, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def publish(
    store: Store,
    folder: Path,
    name: str,
    source: Source,
    type: ArtifactType,
    producer: Producer,
    reference: str,
    metadata: Mapping[str, Any] | None = None,
) -> Artifact:
    """Publish a staged folder and report its name; `reference` is the user's name for it."""
    artifact = store.publish(
        folder,
        name=name,
        type=type,
        fingerprint=_fingerprint(source),
        producer=producer,
        sources=[source],
        metadata=metadata,
    )
    say(f"[{reference}] imported as {artifact.reference} ({artifact.path})")
    return artifact


def require_name(store: Store, name: str, type: ArtifactType) -> None:
    """Refuse a name that steps publish under, or that already exists, with another type."""
    own = next((made.type for made in products() if name.endswith(f"-{made.kind}")), type)
    there = [store.load(name, version).manifest.type for version in store.versions(name)[-1:]]
    for other in (own, *there):
        if other != type:
            raise UserError(f"'{name}' is a name for a {other}, and this is a {type}", "choose another name: --as NAME")


def producer(command: str) -> Producer:
    """The producer entry of an import; `command` is `model import hf://org/name`."""
    return Producer(
        stage=command.partition(" ")[0],
        verb="import",
        stage_version="",
        shared_version=package_version("nemotron-shared") or "not installed",
        config_digest="",
        code_digest="",
        git=None,
        command=f"nemotron {command}",
        environment=environment(),
    )


def _fingerprint(source: Source) -> str:
    return json_digest({"imported": source.digest})


MEGATRON = "megatron_bridge"
CONVERTER = "nemotron_engines.megatron_bridge.import_checkpoint"
"""Runs with the Python of Megatron's environment; its result is published here."""


@dataclass(frozen=True)
class Found:
    """A model from outside. `artifact` is None if only the import can determine it."""

    artifact: Artifact | None
    shown: str
    note: str | None = None
    bring_in: Callable[[], Artifact] | None = None
    no_room: UserError | None = None


def find(store: Store, wanted: HubModel | MegatronModel, *, weights: bool, trusted: bool) -> Found:
    """Resolve a reference: to the pinned version, else to the current state of the hub or folder.

    Raises:
        UserError: it does not exist, or cannot be used here.
    """
    if isinstance(wanted, MegatronModel):
        return _find_megatron(store, wanted)
    there = pinned(store, wanted, weights=weights)
    if there is not None:
        commit = str(there.manifest.metadata["commit"])
        note = f"[{wanted}] is {there.reference}, commit {commit[:12]}"
        if wanted.revision == MAIN:
            note += f"; for a newer one: nemotron model import {wanted}"
        return Found(there, f"{there.reference} ({wanted}, commit {commit[:12]})", note)
    # data and model must use the same commit, whichever is imported first
    tokenizer = pinned(store, wanted, weights=False)
    commit = str(tokenizer.manifest.metadata["commit"]) if tokenizer else None
    look = look_at(wanted, weights=weights, trusted=trusted, commit=commit)
    load = f"{size(look.missing_bytes)} to download" if look.missing else "nothing large to download"
    shown = f"{wanted} (commit {look.commit[:12]}: would be imported first, {load})"
    no_room = None
    try:
        look.require_room()
    except UserError as error:
        no_room = error
    return Found(look.artifact, shown, None, lambda: import_hub(store, look), no_room)


def pinned(store: Store, wanted: HubModel, *, weights: bool) -> Artifact | None:
    """The newest import of the same repository and revision, or of a commit with that name."""
    by_commit = re.fullmatch(r"[0-9a-f]{7,40}", wanted.revision) is not None
    there = []
    for name in [wanted.name()] if weights else [wanted.name(), wanted.name(TOKENIZER)]:
        for version in store.versions(name):
            found = store.load(name, version)
            about = found.manifest.metadata
            same = about.get("revision") == wanted.revision
            same = same or (by_commit and str(about.get("commit")).startswith(wanted.revision))
            if same and about.get("repository") == wanted.repository:
                there.append(found)
    return max(there, key=lambda found: (found.manifest.created_at, found.manifest.version), default=None)


def import_hub(store: Store, look: Look) -> Artifact:
    """Download and publish an inspected model, or reuse an undamaged import of it."""
    wanted, weights = look.model, look.artifact.manifest.type != "TokenizerArtifact"
    name = wanted.name("" if weights else TOKENIZER)
    with made_once(store, name, str(wanted)):
        there = pinned(store, wanted, weights=weights)
        same = there is not None and there.manifest.digest == look.artifact.manifest.digest
        if there is not None and same and not store.verify(there):
            say(f"[{wanted}] unchanged: {there.reference}, commit {look.commit[:12]}")
            return there
        with staging(store, name) as folder:
            digests = fetch(look, folder)
            if weights:
                require_whole(str(wanted), folder, config_of(folder))
                require_finite(str(wanted), folder)
            about = {"repository": wanted.repository, "revision": wanted.revision, "commit": look.commit}
            address = f"hf://{wanted.repository}@{look.commit}"
            artifact = store.publish(
                folder,
                name=name,
                type=look.artifact.manifest.type,
                fingerprint=json_digest({"address": address, "digest": look.artifact.manifest.digest}),
                producer=producer(f"model import {wanted}"),
                sources=[Source(address, look.artifact.manifest.digest, {})],
                metadata=about | look.artifact.manifest.metadata,
                digests=digests,
                links=True,
            )
        # just hashed: save the next use from doing it again
        cache = FileCache(store.home / CACHE / f"{artifact.reference.replace(':', '-')}.json")
        for file, digest in digests.items():
            cache.get(artifact.path / file, lambda path, digest=digest: digest)
        cache.save()
    say(f"[{wanted}] imported as {artifact.reference}, commit {look.commit[:12]} ({artifact.path})")
    return artifact


def import_folder(store: Store, folder: Path, *, name: str | None, trusted: bool) -> Artifact:
    """Publish a Hugging Face folder: files are copied, except that weights in a hub's cache are hard-linked.

    Raises:
        UserError: no such folder, no model or tokenizer in it, a link out of it, or untrusted code.
    """
    label = printable(str(folder))
    if not folder.is_dir():
        raise UserError(f"{label}: no such folder", "give a folder, hf://org/name or megatron:PATH")
    require_inside(folder / "config.json", folder)
    require_small(folder)
    config = config_of(folder)
    if config:
        require_loadable(label, config, trusted=trusted)
    elif (folder / "config.json").is_file():
        raise UserError(f"{label}: config.json holds nothing of a model", "correct or download the file again")
    elif not (folder / "tokenizer.json").is_file():
        raise UserError(f"{label}: holds neither config.json nor tokenizer.json", "give a Hugging Face folder")
    wanted = _wanted(label, folder, config)
    if config:
        require_whole(label, folder, config)
        require_finite(label, folder)
    again = ["model", "import", label, *(["--as", name] if name else []), *(["--trust-code"] if trusted else [])]
    name = name or artifact_name(folder.resolve().name)
    type = model_type(config) if config else "TokenizerArtifact"
    require_name(store, name, type)
    with made_once(store, name, label), staging(store, name) as staged:
        for path in wanted:
            take = link_or_copy if path.suffix in WEIGHTS and is_blob(path, folder) else copy_content
            target = staged / path.relative_to(folder)
            target.parent.mkdir(exist_ok=True)
            take(path.resolve(), target)
        source = Source(str(folder.resolve()), table_digest(file_table(staged)), {})
        made = made_from(store, name, source)
        if made is not None:
            say(f"[{label}] unchanged: {made.reference}")
            return made
        return publish(store, staged, name, source, type, producer(shlex.join(again)), label)


def _wanted(label: str, folder: Path, config: dict[str, Any]) -> list[Path]:
    """Files of a folder that belong to a model, or to a tokenizer if the folder has no config.

    Raises:
        UserError: no weights, something that is not a file, or a link out of the folder.
    """
    wanted = [
        path
        for path in (*sorted(folder.iterdir()), *sorted(folder.glob(f"{MORE_TEMPLATES}/*.jinja")))
        if path.name != "manifest.json"
        and not (path.is_dir() and path.name.startswith(("LICENSE", "NOTICE")))
        and (
            TOKENIZER_FILES.fullmatch(path.relative_to(folder).as_posix())
            or (config and (MODEL_FILES.fullmatch(path.name) or path.suffix in (*WEIGHTS, ".py")))
        )
    ]
    if odd := [path.name for path in wanted if not path.is_file()]:
        what = f"{label}: {printable(', '.join(odd))}: not a regular file, nor a link to one"
        raise UserError(what, "copy the file into the folder, or take it out")
    if config and not any(path.suffix in WEIGHTS for path in wanted):
        raise UserError(f"{label}: holds no weights (*.safetensors)", "give the folder with the weights")
    for path in wanted:
        if path.is_symlink() or path.parent != folder:  # that folder may be a link
            require_inside(path, folder)
    return wanted


def import_megatron(store: Store, model: MegatronModel, name: str | None = None) -> Artifact:
    """Convert a Megatron checkpoint to a Hugging Face folder, in its engine's environment, and publish it.

    Raises:
        UserError: the engine is not installed, or Bridge cannot convert it.
    """
    python, source, name = _megatron_python(model), _megatron_source(store, model), name or model.name
    require_name(store, name, "ModelArtifact")
    with made_once(store, name, str(model)):
        made = made_from(store, name, source)
        if made is not None:
            say(f"[{model}] unchanged: {made.reference}")
            return made
        with staging(store, name) as folder:
            say(f"[{model}] converting with {python}")
            command = [python, "-m", CONVERTER, str(model.path.absolute()), str(folder)]
            if subprocess.run(command, check=False).returncode:
                raise UserError(f"{model}: Megatron-Bridge could not convert it", "see what it printed above")
            require_finite(str(model), folder)
            again = ["model", "import", str(model), *(["--as", name] if name != model.name else [])]
            how = producer(shlex.join(again))
            return publish(store, folder, name, source, "ModelArtifact", how, str(model))


def _find_megatron(store: Store, model: MegatronModel) -> Found:
    source = _megatron_source(store, model)
    made = made_from(store, model.name, source)
    if made is not None:
        return Found(made, f"{made.reference} ({model})", f"[{model}] is {made.reference}")
    _megatron_python(model)
    shown = f"{model} (would be converted and imported first)"
    return Found(None, shown, None, lambda: import_megatron(store, model))


def _megatron_source(store: Store, model: MegatronModel) -> Source:
    """The checkpoint by its content; hashed again only if something changes."""
    if not any((model.path / name).exists() for name in ("run_config.yaml", "metadata.json", ".metadata")) and not any(
        model.path.glob("iter_*")
    ):
        what = f"{model}: no checkpoint of Megatron (no run_config.yaml, metadata.json or iter_*)"
        raise UserError(what, "give the folder that Megatron saved, or one of its iter_ folders")
    label = artifact_name(str(model.path.absolute()))
    with known_digests(store.home, f"external-{label}", str(model)) as digest:
        files = file_table(model.path, digest=digest)
    return Source(str(model.path.resolve()), table_digest(files), {})


def _megatron_python(model: MegatronModel) -> str:
    """The Python with Megatron-Bridge."""
    environment = environment_of(MEGATRON)
    assert environment is not None
    if environment.python is None:
        what = f"{model}: to convert it, engine '{MEGATRON}' is needed"
        raise UserError(what, f"make its environment: {environment.install}")
    return environment.python
