"""The local artifact store: one folder per version, either absent or complete.

    .nemotron/artifacts/super3-sft-model/v1/{manifest.json, model.safetensors, ...}
                                         v2/...
                                         aliases.json        {"best": 1}
                                         reused.json         {"version": 1, "newest": 2}: `latest` is v1 again
                                         index.json          fingerprints of published versions; rebuilt if missing
                        .staging/                            copies in progress, and versions being removed
              cache/artifacts.json                           summaries of manifests for lists and searches: see `index`
              cache/verified/                                digests of files found intact

A version appears with a single rename of a finished folder that already contains its manifest: see `claim`.
"""

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from nemotron_shared.artifacts import names
from nemotron_shared.artifacts.artifact import Artifact, folder_at, is_folder, problems, seal, table_digest, utc
from nemotron_shared.artifacts.index import (
    VERSION_FOLDER,
    Entry,
    Shelf,
    entries_of,
    files_in,
    is_version,
    listed,
    numbers_in,
    read_as,
    read_published,
    record,
)
from nemotron_shared.artifacts.manifest import MANIFEST, ArtifactType, Manifest, Parent, Producer, Source
from nemotron_shared.artifacts.names import LATEST, SCHEME, Reference, parse_reference
from nemotron_shared.artifacts.verified import known_digests
from nemotron_shared.stages import DEFAULT_FAMILY
from nemotron_shared.system import atomic
from nemotron_shared.system.errors import NotFound, UserError, did_you_mean
from nemotron_shared.system.redaction import redact, redact_values

HOME_VARIABLE = "NEMOTRON_HOME"
STAGING = ".staging"
STALE_SECONDS = 24 * 3600
TAKEN = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}


def claim(root: Path, directory: Path, manifest: Manifest) -> Artifact:
    """Take the first free version number by renaming, rewriting the manifest for each attempt."""
    shelf = root / manifest.name
    _make_folder(shelf)
    while True:
        atomic.write_bytes(directory / MANIFEST, manifest.to_bytes())
        folder = shelf / f"v{manifest.version}"
        try:
            directory.rename(folder)
        except OSError as error:
            if error.errno == errno.EXDEV:
                return _claim_copy(root, directory, manifest)
            if error.errno not in TAKEN:
                raise UserError(f"{directory}: cannot be moved to {folder}: {error.strerror}") from error
            manifest = replace(manifest, version=manifest.version + 1)
        else:
            atomic.sync(shelf)
            return Artifact(manifest, folder)


def _claim_copy(root: Path, directory: Path, manifest: Manifest) -> Artifact:
    """Copy into the store's file system first; the original is removed once the copy is published."""
    staging = root / STAGING
    _make_folder(staging)
    sweep(staging)
    staged = atomic.temporary_folder(staging, f"{manifest.name}-")
    try:
        try:
            # Contents only: the copies get new times, which tell `sweep` they are in use.
            shutil.copytree(directory, staged, symlinks=True, copy_function=shutil.copyfile, dirs_exist_ok=True)
        except OSError as error:
            raise UserError(f"{directory}: cannot be copied into the store: {error}", "free space there") from error
        if table_digest(seal(staged, links=True)) != manifest.digest:
            raise UserError(f"{directory}: changed while it was copied", "publish when nothing writes to it")
        artifact = claim(root, staged, manifest)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    shutil.rmtree(directory)
    return artifact


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be made: {error.strerror}", f"set {HOME_VARIABLE} to a folder you can write to"
        ) from error


def sweep(staging: Path) -> None:
    """Remove the remains of killed copies once nothing in them has changed for a day."""
    for folder in staging.iterdir():
        if last_change(folder) < time.time() - STALE_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


def last_change(folder: Path) -> float:
    try:
        return max(path.lstat().st_mtime for path in [folder, *folder.rglob("*")])
    except FileNotFoundError:
        return time.time()  # another process is publishing or sweeping it


DEFAULT_HOME = ".nemotron"
HUGGING_FACE = "-hf"
"""Suffix of a model's Hugging Face form in NVIDIA's recipes; models here have no other form."""


def default_home() -> Path:
    """`.nemotron` in the working directory, or at the top of the repository this code runs from if we are inside it.

    A stage started in its own folder therefore finds the results of other stages.
    """
    here, top = Path.cwd(), Path(__file__).resolve().parents[5]
    is_repository = (top / "uv.lock").is_file() and (top / "stages").is_dir()
    return (top if is_repository and here.is_relative_to(top) else here) / DEFAULT_HOME


@dataclass(frozen=True)
class Store:
    """Artifacts below `home`, which need not exist for reading."""

    home: Path

    @classmethod
    def open(cls, home: str | None = None) -> "Store":
        """The store at `home`, else at $NEMOTRON_HOME, else in `.nemotron`: see `default_home`.

        Raises:
            UserError: something else than a folder is there, or above.
        """
        place = Path(home or os.environ.get(HOME_VARIABLE) or default_home()).expanduser().absolute()
        there = next((folder for folder in (place, *place.parents) if os.path.lexists(folder)), place)
        if os.path.lexists(there) and not there.is_dir():
            above = "" if there == place else f"{there} is "
            what = "a link to nothing" if there.is_symlink() and not there.exists() else "not a folder"
            raise UserError(f"{place}: the store cannot be here: {above}{what}", f"set {HOME_VARIABLE}, or run.home")
        return cls(place)

    @cached_property
    def root(self) -> Path:
        return self.home / "artifacts"

    def folder(self, reference: Reference) -> Path:
        """Path of a version, if it exists."""
        return self.root / reference.name / f"v{reference.version}"

    def names(self) -> list[str]:
        """Names with at least one version."""
        return list(self.shelves())

    def shelves(self) -> dict[str, list[int]]:
        """Every name with its versions, except those whose folder cannot be read."""
        shelves = {}
        for name in self._shelf_names():
            with suppress(OSError):
                shelves[name] = self.versions(name)
        return {name: versions for name, versions in shelves.items() if versions}

    def versions(self, name: str) -> list[int]:
        """Version numbers, ascending, including damaged versions but not empty folders."""
        shelf = self.root / name
        return [number for number in self._numbers(name) if is_version(f"{shelf}/v{number}")]

    def aliases(self, name: str) -> dict[str, int]:
        """Aliases of an artifact name, with their versions."""
        return names.aliases_of(self.root / name)

    def load(self, name: str, version: int) -> Artifact:
        """Load one version, which must exist."""
        folder = self.root / name / f"v{version}"
        return Artifact(read_as(folder / MANIFEST, name, version), folder)

    def listed(self) -> Iterator[Shelf]:
        """A summary of every name with versions or an unreadable folder, sorted by name."""
        return listed(self.home, self._shelf_names())

    def entries(self) -> Iterator[tuple[Reference, Entry | UserError]]:
        """Summary of every version, by name and then age, or the error if its manifest cannot be read.

        Raises:
            UserError: a name's folder cannot be read.
        """
        for shelf in self.listed():
            if shelf.problem is not None:
                raise shelf.problem
            for version, found in shelf.versions.items():
                yield Reference(shelf.name, version), found

    def readable(self, kind: ArtifactType) -> Iterator[Artifact]:
        """Every version of a type, skipping unreadable manifests."""
        for shelf in self.listed():
            for version, entry in shelf.versions.items():
                if not isinstance(entry, UserError) and entry.type == kind:
                    with suppress(UserError):  # deleted in the meantime
                        yield self.load(shelf.name, version)

    def find_by_fingerprint(self, name: str, fingerprint: str) -> Artifact | None:
        """The newest version made from the same inputs, config and code.

        Raises:
            UserError: that version is damaged.
        """
        shelf, learned = self.root / name, {}
        published = read_published(shelf)
        with entries_of(self.home) as entries:
            for version in reversed(self._numbers(name)):
                promised = published.get(version) == fingerprint
                try:
                    made_from = entries.of(name, version).fingerprint
                except FileNotFoundError:
                    continue
                except UserError:
                    # Skip unreadable versions, but do not silently remake the one we are looking for.
                    if promised:
                        raise
                    continue
                if made_from == fingerprint:
                    return self.load(name, version)
                if promised:
                    self._refuse_damaged(name, version)
                learned[version] = made_from
        record(shelf, learned)
        return None

    def _refuse_damaged(self, name: str, version: int) -> None:
        """Raise if a manifest changed since publishing through damage, as opposed to being replaced."""
        found = self.load(name, version)
        damage = [line for line in problems(found, fast=True) if line.startswith(MANIFEST)]
        if damage:
            raise UserError(
                f"{found.reference} is damaged: {damage[0]} (in {found.path})",
                f"remove it: nemotron artifacts rm {found.reference}",
            )

    def resolve(
        self, reference: Reference | str, *, family: str = DEFAULT_FAMILY, expect: ArtifactType | None = None
    ) -> Artifact:
        """Load the artifact for a reference or a folder's path; `expect` is the required type.

        A path into this store means that version. Any other folder becomes an external artifact of the expected type,
        `ModelArtifact` by default.
        """
        if isinstance(reference, str) and names.is_path(reference):
            folder = folder_at(Path(reference))
            number = VERSION_FOLDER.fullmatch(folder.name)
            if not number or folder.parent.parent != self.root.resolve() or not is_version(str(folder)):
                digest = hashlib.sha256(str(folder).encode("utf-8", "surrogateescape")).hexdigest()[:32]
                with known_digests(self.home, f"external-{digest}", str(folder)) as digest_of:
                    return Artifact.external(folder, expect or "ModelArtifact", digest_of)
            artifact = self.load(folder.parent.name, int(number[1]))
        else:
            try:
                wanted = parse_reference(reference, family) if isinstance(reference, str) else reference
                plain = wanted.name.removesuffix(HUGGING_FACE)
                if plain != wanted.name and not self.versions(wanted.name) and self.versions(plain):
                    wanted = replace(wanted, name=plain)
                artifact = self.load(wanted.name, self.version_of(wanted))
            except UserError as error:
                if not isinstance(reference, str) or "/" not in reference.removeprefix(SCHEME):
                    raise
                raise missing_place(reference, error, expect or "ModelArtifact") from error
        if expect is not None and artifact.manifest.type != expect:
            require_kind(artifact.reference, artifact.manifest.type, expect)
            raise UserError(
                f"{artifact.reference} is of type {artifact.manifest.type}, and {expect} is needed here",
                "see `nemotron artifacts list` for the types of all artifacts",
            )
        return artifact

    def publish(
        self,
        directory: Path,
        *,
        name: str,
        type: ArtifactType,
        fingerprint: str,
        producer: Producer,
        parents: Sequence[Parent] = (),
        sources: Sequence[Source] = (),
        metadata: Mapping[str, Any] | None = None,
        metrics: Mapping[str, Any] | None = None,
        links: bool = False,
        digests: Mapping[str, str] | None = None,
        segments: Sequence[Mapping[str, Any]] = (),
    ) -> Artifact:
        """Move a finished folder into the store as the next version of `name`. Safe to interrupt and repeat.

        `digests`, SHA-256 by file name, are trusted: the writer of the files took them.
        `links` allows links, for zero-copy references to large raw data: relative ones within the folder, absolute
        ones out of it.
        """
        names.check_name(name)
        files = seal(directory, links=links, known=digests)
        # Above removed versions and aliases too: an old reference must never mean a new artifact.
        removed = [number for number, made_from in read_published(self.root / name).items() if made_from is None]
        taken = [*self._numbers(name), *self.aliases(name).values(), *removed]
        manifest = Manifest(
            name=name,
            version=max(taken, default=0) + 1,
            type=type,
            created_at=utc(time.time()),
            fingerprint=fingerprint,
            digest=table_digest(files),
            files=files,
            # redact the texts only: digests cover the data itself
            producer=replace(producer, command=redact(producer.command)),
            parents=tuple(parents),
            sources=_redacted(sources),
            metadata=redact_values(dict(metadata or {})),
            metrics=redact_values(dict(metrics or {})),
            segments=[redact_values(dict(segment)) for segment in segments],
        )
        # Parse it as it will be written: errors surface before the rename, and tuples become what JSON makes of them.
        readable = Manifest.parse(manifest.to_bytes(), directory / MANIFEST)
        artifact = claim(self.root, directory, readable)
        record(self.root / name, {artifact.manifest.version: fingerprint})
        return artifact

    def set_alias(self, name: str, version: int, alias: str) -> None:
        """Point `name:alias` to this version."""
        names.check_alias(alias)
        names.set_alias(self.root / name, alias, self.version_of(Reference(name, version)))

    def drop_aliases(self, name: str, version: int) -> list[str]:
        """Remove a version's aliases, and return them."""
        return names.drop_aliases(self.root / name, version)

    def use_again(self, artifact: Artifact) -> None:
        """Make this version `latest` until a newer one is published, because a run just reused it."""
        name = artifact.manifest.name
        names.use_again(self.root / name, artifact.manifest.version, self.versions(name)[-1])

    def latest_of(self, name: str, versions: Sequence[int]) -> int:
        """The newest version, or the older one that was reused last."""
        return names.latest_of(self.root / name, versions)

    def verify(self, artifact: Artifact, *, fast: bool = False) -> list[str]:
        """Problems with the files: missing, extra, or changed, by hash (by size if `fast`)."""
        return problems(artifact, fast=fast)

    def _shelf_names(self) -> list[str]:
        return sorted(filter(names.WORD.fullmatch, os.listdir(self.root))) if self.root.is_dir() else []  # noqa: PTH208 - see `files_in`

    def _numbers(self, name: str) -> list[int]:
        return numbers_in(self._files_of(name))

    def _files_of(self, name: str) -> list[str]:
        return files_in(f"{self.root}/{name}")

    def version_of(self, reference: Reference) -> int:
        """The version number of a reference, without reading the manifest."""
        versions = self.versions(reference.name)
        if not versions:
            known = self.names()
            message = f"no artifact '{reference.name}' in {self.root}"
            if Path(reference.name).is_dir():
                raise NotFound(message, f"for the folder, write ./{reference.name}")
            if not known:
                raise NotFound(f"{message}, which is empty", f"run the stage that makes it, or set {HOME_VARIABLE}")
            raise NotFound(message, did_you_mean(reference.name, known, otherwise=f"it holds: {names.few(known)}"))
        known_as = self.aliases(reference.name)
        wanted = self.latest_of(reference.name, versions) if reference.version == LATEST else reference.version
        number = known_as.get(wanted) if isinstance(wanted, str) else wanted
        if number in versions:
            return number
        named = [f"{alias} -> v{version}" for alias, version in known_as.items()]
        has = ", ".join(filter(None, (names.few([f"v{number}" for number in versions]), names.few(named))))
        near = did_you_mean(wanted, known_as) if isinstance(wanted, str) else None
        raise NotFound(f"no {reference} in {self.root}", near or f"{reference.name} has: {has}")


MODELS: dict[ArtifactType, tuple[str, str]] = {
    "ModelArtifact": ("a language model, which writes answers", "a reward model, made with `rl -c reward`"),
    "RewardModelArtifact": ("a reward model, which scores answers and writes none", "a language model"),
}
"""What each kind of model is, and what to give in its place."""


def require_kind(label: str, found: ArtifactType, expect: ArtifactType) -> None:
    """Refuse a reward model for a language model, and the other way round.

    Raises:
        UserError: saying what it is.
    """
    if found != expect and found in MODELS and expect in MODELS:
        what, instead = MODELS[found]
        raise UserError(f"{label} is {what}", f"give {instead}")


def missing_place(text: str, error: UserError, expect: ArtifactType) -> UserError:
    """The error for a name with slashes and no artifact, which may also have been meant as a folder.

    A damaged version's own error is returned unchanged.
    """
    path = Path(text)
    if not isinstance(error, NotFound) and all(map(names.WORD.fullmatch, path.parts)):
        return error
    above = next((str(folder) for folder in path.parents if is_folder(str(folder))), ".")
    there = names.few(sorted(os.listdir(folder_at(Path(above)))))  # noqa: PTH208 - names
    beside = "" if above == "." else f" ({above} holds: {there})" if there else f" ({above} is empty)"
    artifact = error.message if isinstance(error, NotFound) else "no artifact can have that name"
    remedy = "give the path of a folder that exists, or an artifact such as sft:v2"
    if expect == "ModelArtifact":
        could_be = text.count("/") == 1 and ":" not in text
        remedy += f"; a model on the hub is hf://{text if could_be else 'ORGANISATION/NAME'}"
    return NotFound(f"'{text}': no such folder{beside}, and {artifact}", remedy)


def _redacted(sources: Sequence[Source]) -> tuple[Source, ...]:
    """Sources without secrets; all in one call, because there may be ten thousand."""
    shown = redact_values([(source.uri, source.detail) for source in sources])
    return tuple(Source(uri, source.digest, detail) for source, (uri, detail) in zip(sources, shown, strict=True))
