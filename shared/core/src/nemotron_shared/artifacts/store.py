"""The local store: one folder per version, which is either absent or complete.

    .nemotron/artifacts/super3-sft-model/v1/{manifest.json, model.safetensors, ...}
                                         v2/...
                                         aliases.json        {"best": 1}
                                         reused.json         {"version": 1, "newest": 2}: `latest` is v1 again
                                         index.json          what was published as what; made anew when missing
                        .staging/                            copies under way, and versions being removed
              cache/artifacts.json                           what lists and searches ask of manifests: see `index`
              cache/verified/                                digests of files that were found intact

A version comes into being by one rename of a finished folder that already holds its manifest: see `claim`.
"""

import hashlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from nemotron_shared.artifacts import aliases, names
from nemotron_shared.artifacts.artifact import Artifact, folder_at, is_folder, problems, seal, table_digest, utc
from nemotron_shared.artifacts.claim import HOME_VARIABLE, claim
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
from nemotron_shared.artifacts.names import DEFAULT_FAMILY, LATEST, SCHEME, Reference, parse_reference
from nemotron_shared.artifacts.verified import known_digests
from nemotron_shared.errors import NotFound, UserError, did_you_mean
from nemotron_shared.redaction import redact, redact_values

DEFAULT_HOME = ".nemotron"
HUGGING_FACE = "-hf"
"""What follows the name of a model for its Hugging Face form in NVIDIA's recipes; a model here has no other form."""


def default_home() -> Path:
    """`.nemotron` of the working directory; anywhere in the repository that this code runs from, the one at its top.

    A stage that is started in its own folder finds there what the other stages made.
    """
    here, top = Path.cwd(), Path(__file__).resolve().parents[5]
    is_repository = (top / "uv.lock").is_file() and (top / "stages").is_dir()
    return (top if is_repository and here.is_relative_to(top) else here) / DEFAULT_HOME


@dataclass(frozen=True)
class Store:
    """Artifacts below `home`. Reading needs nothing to exist yet."""

    home: Path

    @classmethod
    def open(cls, home: str | None = None) -> "Store":
        """The store at `home`, else at $NEMOTRON_HOME, else in `.nemotron`: see `default_home`."""
        return cls(Path(home or os.environ.get(HOME_VARIABLE) or default_home()).expanduser().absolute())

    @cached_property
    def root(self) -> Path:
        return self.home / "artifacts"

    def folder(self, reference: Reference) -> Path:
        """Where a version lies, if it exists."""
        return self.root / reference.name / f"v{reference.version}"

    def names(self) -> list[str]:
        """Names with at least one version."""
        return list(self.shelves())

    def shelves(self) -> dict[str, list[int]]:
        """Every name with its versions, but for folders that cannot be read."""
        shelves = {}
        for name in self._shelf_names():
            with suppress(OSError):
                shelves[name] = self.versions(name)
        return {name: versions for name, versions in shelves.items() if versions}

    def versions(self, name: str) -> list[int]:
        """Versions, oldest first, damaged ones too; an empty folder is none."""
        shelf = self.root / name
        return [number for number in self._numbers(name) if is_version(f"{shelf}/v{number}")]

    def aliases(self, name: str) -> dict[str, int]:
        """Aliases of one artifact name and the versions they stand for."""
        return aliases.aliases_of(self.root / name)

    def load(self, name: str, version: int) -> Artifact:
        """One version, which must exist."""
        folder = self.root / name / f"v{version}"
        return Artifact(read_as(folder / MANIFEST, name, version), folder)

    def listed(self) -> Iterator[Shelf]:
        """What lists show of every name that has versions, or whose folder cannot be read, in the order of names."""
        return listed(self.home, self._shelf_names())

    def entries(self) -> Iterator[tuple[Reference, Entry | UserError]]:
        """What lists show of every version, by name and then age, or why its manifest cannot be read.

        Raises:
            UserError: nobody can tell which versions a name has.
        """
        for shelf in self.listed():
            if shelf.problem is not None:
                raise shelf.problem
            for version, found in shelf.versions.items():
                yield Reference(shelf.name, version), found

    def readable(self, kind: ArtifactType) -> Iterator[Artifact]:
        """Every version of a type whose manifest can be read."""
        for shelf in self.listed():
            for version, entry in shelf.versions.items():
                if not isinstance(entry, UserError) and entry.type == kind:
                    with suppress(UserError):  # gone meanwhile
                        yield self.load(shelf.name, version)

    def find_by_fingerprint(self, name: str, fingerprint: str) -> Artifact | None:
        """The newest version that was made from the same inputs, config and code.

        Raises:
            UserError: the version that was made from them is damaged.
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
                    # Nobody can use one that cannot be read; but what is searched for must not be made again silently.
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
        """Raise where a manifest is not what it was published as because of damage, and not of a replacement."""
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
        """Find what a reference, or the path of a folder, means; `expect` is the type it must have.

        A path into this store means that version. Any other folder is taken as external and gets the
        expected type, `ModelArtifact` where none is given.
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

        `digests`, SHA-256 by file name, are believed: whoever wrote the files took them then.
        `links` allows links to files, for zero-copy references to large raw data: relative ones within the
        folder, absolute ones out of it.
        """
        names.check_name(name)
        files = seal(directory, links=links, known=digests)
        # Above the aliases and the removed versions too: a name must not fall to another artifact.
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
            # digests are of what was read and made; only the words about it are for everybody to read
            producer=replace(producer, command=redact(producer.command)),
            parents=tuple(parents),
            sources=_redacted(sources),
            metadata=redact_values(dict(metadata or {})),
            metrics=redact_values(dict(metrics or {})),
            segments=[redact_values(dict(segment)) for segment in segments],
        )
        # Read back what will be written: an error now costs nothing, and what JSON changes (tuples) changes here.
        readable = Manifest.parse(manifest.to_bytes(), directory / MANIFEST)
        artifact = claim(self.root, directory, readable)
        record(self.root / name, {artifact.manifest.version: fingerprint})
        return artifact

    def set_alias(self, name: str, version: int, alias: str) -> None:
        """Let `name:alias` mean this version from now on."""
        names.check_alias(alias)
        aliases.set_alias(self.root / name, alias, self.version_of(Reference(name, version)))

    def drop_aliases(self, name: str, version: int) -> list[str]:
        """Forget the aliases of a version that is removed, and tell which they were."""
        return aliases.drop_aliases(self.root / name, version)

    def use_again(self, artifact: Artifact) -> None:
        """Let `latest` mean this version until a newer one is published: its work was asked for again just now."""
        name = artifact.manifest.name
        aliases.use_again(self.root / name, artifact.manifest.version, self.versions(name)[-1])

    def latest_of(self, name: str, versions: Sequence[int]) -> int:
        """The newest of a name's versions, or the older one that was last used again."""
        return aliases.latest_of(self.root / name, versions)

    def verify(self, artifact: Artifact, *, fast: bool = False) -> list[str]:
        """What is wrong with the files: missing, extra, or changed by hash (by size only if `fast`)."""
        return problems(artifact, fast=fast)

    def _shelf_names(self) -> list[str]:
        return sorted(filter(names.WORD.fullmatch, os.listdir(self.root))) if self.root.is_dir() else []  # noqa: PTH208 - see `files_in`

    def _numbers(self, name: str) -> list[int]:
        return numbers_in(self._files_of(name))

    def _files_of(self, name: str) -> list[str]:
        return files_in(f"{self.root}/{name}")

    def version_of(self, reference: Reference) -> int:
        """The number that a reference means, without reading the manifest."""
        versions = self.versions(reference.name)
        if not versions:
            known = self.names()
            message = f"there is no artifact '{reference.name}' in {self.root}"
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
        raise NotFound(f"there is no {reference} in {self.root}", near or f"{reference.name} has: {has}")


def missing_place(text: str, error: UserError, expect: ArtifactType) -> UserError:
    """What to say of a name with slashes that no artifact has: it may also have been meant as a folder.

    A version that is there and damaged stays that error.
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
    """Sources as everybody may read them; all at once, because there may be ten thousand."""
    shown = redact_values([(source.uri, source.detail) for source in sources])
    return tuple(Source(uri, source.digest, detail) for source, (uri, detail) in zip(sources, shown, strict=True))
