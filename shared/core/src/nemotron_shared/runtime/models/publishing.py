"""Publish an import once: concurrent processes wait for it and reuse the result.

with made_once(store, "my-model", "./folder"), staging(store, "my-model") as folder:
    made = made_from(store, "my-model", source)        # by another process, just now or long ago
    ...                                                # fetch, convert or copy into the folder
    publish(store, folder, "my-model", source, "ModelArtifact", producer(...), "./folder")
"""

import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nemotron_shared.artifacts import Artifact, ArtifactType, Producer, Source, Store
from nemotron_shared.artifacts.claim import STAGING
from nemotron_shared.digest import json_digest
from nemotron_shared.errors import UserError
from nemotron_shared.lock import locked
from nemotron_shared.runtime.console import say
from nemotron_shared.runtime.provenance import environment, package_version
from nemotron_shared.stages import products

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
