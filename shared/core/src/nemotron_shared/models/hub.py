"""A model on the hub: inspected before anything large is downloaded, then fetched, checked, and linked into a folder.

    look = look_at(HubModel("org/name"), weights=True, trusted=False)
    look.commit, look.artifact.manifest.files, look.missing_bytes
    fetch(look, into)

huggingface_hub does the transfers: its cache, HF_TOKEN, HF_ENDPOINT, proxies, HF_HUB_OFFLINE. We add what it lacks:
which files make up a model, whether their content has the promised digest, and downloads that continue after a kill.
"""

import glob
import hashlib
import io
import math
import os
import re
import shutil
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from nemotron_shared.artifacts.artifact import NOBODY, Artifact, table_digest, utc
from nemotron_shared.artifacts.manifest import FileEntry, Manifest
from nemotron_shared.models.folder import (
    MORE_TEMPLATES,
    config_of,
    model_type,
    needs_code,
    require_loadable,
)
from nemotron_shared.models.references import HubModel
from nemotron_shared.models.weights import (
    LARGEST_HEADER,
    WEIGHTS,
    Header,
    header_from,
    header_of,
    require_all,
    weight_files,
)
from nemotron_shared.system.console import clock, renew, say
from nemotron_shared.system.digest import file_digest
from nemotron_shared.system.disk import full_disk_explained, size
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.hub_errors import HubPlace, hub_errors
from nemotron_shared.system.lock import locked

# What a hub, or a mirror of it, says about files must be validated: its digests, commits and ETags become file names in
# the hub's cache, and one with a slash would lead out of it.

SHA256, GIT = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")
ETAG = re.compile(r'(?:W/)?"?[\w.+=:-]{1,200}"?', re.ASCII)
REMEDY = "check the mirror in HF_ENDPOINT, or the proxy; nothing was imported"


def require_commit(text: str, commit: Any) -> str:
    """Check that a commit is 40 hexadecimal digits.

    Raises:
        UserError: it is not.
    """
    if not isinstance(commit, str) or not GIT.fullmatch(commit):
        raise UserError(f"{text}: the hub returned an invalid commit: {str(commit)[:80]!r}", REMEDY)
    return commit


def require_promise(text: str, name: str, digest: Any, size: Any, *, large: bool) -> None:
    """Refuse an invalid digest (SHA-256, or git's SHA-1 if not `large`) or size.

    Raises:
        UserError: with the file.
    """
    forms = (SHA256,) if large else (SHA256, GIT)
    if not isinstance(digest, str) or not any(form.fullmatch(digest) for form in forms):
        raise UserError(f"{text}: {name}: the hub returned an invalid digest: {str(digest)[:80]!r}", REMEDY)
    if type(size) is not int or size < 0:
        raise UserError(f"{text}: {name}: the hub returned an invalid size: {str(size)[:80]!r}", REMEDY)


def is_plain(name: Any) -> bool:
    """Whether a file is at the top of a repository, or a further chat template, with a name that is safe everywhere."""
    if not isinstance(name, str):
        return False
    name = name.removeprefix(f"{MORE_TEMPLATES}/") if name.endswith(".jinja") else name
    return 0 < len(name) <= 200 and name.isprintable() and not {"/", "\\"} & set(name) and name not in (".", "..")


def check_answers() -> None:
    """Make the library's HTTP client refuse responses with headers unsafe as file names; once per client."""
    from huggingface_hub import get_session

    hooks = get_session().event_hooks.setdefault("response", [])
    if _check_headers not in hooks:
        hooks.append(_check_headers)


def _check_headers(answer: Any) -> None:
    for header, form in (("ETag", ETAG), ("X-Linked-ETag", ETAG), ("X-Repo-Commit", GIT)):
        value = answer.headers.get(header)
        if value is not None and not form.fullmatch(value):
            raise UserError(f"{answer.url.host}: an answer with {header} {value[:80]!r}, which cannot be one", REMEDY)


def is_as_promised(path: Path, expected: str) -> bool:
    """Whether a file has the promised digest."""
    if SHA256.fullmatch(expected):
        return file_digest(path) == expected
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest() == expected


TOKENIZER_FILES = re.compile(
    r"tokenizer\.(json|model)|tokenizer_config\.json|special_tokens_map\.json|added_tokens\.json|vocab\.(json|txt)"
    rf"|merges\.txt|chat_template\.(jinja|json)|{MORE_TEMPLATES}/[\w.-]+\.jinja"
)
MODEL_FILES = re.compile(r"[\w.-]+\.json|LICENSE\S*|NOTICE\S*")
HEADER = 100_000
"""Bytes that cover the header of most weight files."""


@dataclass(frozen=True)
class Look:
    """Everything known about a model before its weights are downloaded.

    Attributes:
        model: as requested; `commit` is what it resolves to.
        folder: the commit's folder in the hub's cache, which has the small files.
        expected: SHA-256 of a file, or git's SHA-1 for a file the hub keeps in git.
        artifact: what an import would make: its files with their digests, so its identity is known.
        missing: names and sizes of files not in the hub's cache.
        online: whether the hub answered, as opposed to the local cache.
    """

    model: HubModel
    commit: str
    folder: Path
    expected: dict[str, str]
    artifact: Artifact
    missing: dict[str, int]
    online: bool

    @property
    def missing_bytes(self) -> int:
        """Bytes an import would download."""
        return sum(self.missing.values())

    def require_room(self) -> Path:
        """The hub's cache, after checking that the missing files fit.

        Raises:
            UserError: they do not.
        """
        from huggingface_hub import constants

        folder = Path(constants.HF_HUB_CACHE)
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        if (free := shutil.disk_usage(existing).free) < self.missing_bytes:
            what = f"{self.model}: {size(self.missing_bytes)} to download to {folder}, where {size(free)} are free"
            raise UserError(what, "free some space, or set HF_HOME to a folder on a larger disk")
        return folder


@dataclass(frozen=True)
class _File:
    """A file in a repository, as described by the hub or its cache; `large` ones are stored outside git."""

    name: str
    size: int
    expected: str
    large: bool


@cache
def look_at(model: HubModel, *, weights: bool, trusted: bool, commit: str | None = None) -> Look:
    """Query the hub, or its local cache when offline; download small files, and check the config.

    Cached, so that a process's checks and its import use the same commit.

    Args:
        weights: False for only a tokenizer.
        trusted: allow the model's Python files.
        commit: if already known.

    Raises:
        UserError: no such model, no access to it, or nothing here can load it.
    """
    text = str(model)
    with hub_errors(text, HubPlace(model.repository, model.revision, "model")):
        check_answers()
        found, files, online = _files_of(model, commit)
        small = [file.name for file in files.values() if TOKENIZER_FILES.fullmatch(file.name)]
        if weights:
            small += [name for name in files if MODEL_FILES.fullmatch(name) and name not in small]
        _require_promises(text, files, small)
        folder = download(model, found, small)
        config = config_of(folder)
        if weights and not (config.get("model_type") or config.get("auto_map")):
            remedy = "give a model in Hugging Face's layout: config.json and safetensors"
            raise UserError(f"{text}: holds no config.json of a model; it has {_some(files)}", remedy)
        if not weights and "tokenizer.json" not in small:
            raise UserError(f"{text}: holds no tokenizer.json; it has {_some(files)}", "give another tokenizer")
        large: list[str] = []
        weight_names = large
        if weights:
            require_loadable(text, config, trusted=trusted)
            code = [name for name in files if name.endswith(".py")] if needs_code(config) else []
            large = weight_names = _weights(text, folder, files)
            # weights stored in git are small, too, and their SHA-256 is known only from their content
            small += code + [name for name in large if not files[name].large]
            _require_promises(text, files, [*small, *large])
            folder = download(model, found, small)
        large = [name for name in large if files[name].large]
        entries = {name: FileEntry(file_digest(folder / name), (folder / name).stat().st_size) for name in small}
        entries |= {name: FileEntry(files[name].expected, files[name].size) for name in large}
        missing = {name: files[name].size for name in large if not (folder / name).is_file()}
        metadata = {"weights": _parameters(model, found, files, folder, weight_names)} if weights else {}
    chosen = dict(sorted(entries.items()))
    manifest = Manifest(
        name=model.name(), version=0, type=model_type(config) if weights else "TokenizerArtifact",
        created_at=utc(time.time()), fingerprint=table_digest(chosen), digest=table_digest(chosen), files=chosen,
        producer=NOBODY, parents=(), sources=(), metadata=metadata, metrics={},
    )  # fmt: skip
    expected = {name: files[name].expected for name in chosen}
    return Look(model, found, folder, expected, Artifact(manifest, folder), missing, online)


def _files_of(model: HubModel, commit: str | None) -> tuple[str, dict[str, _File], bool]:
    """The commit, the files at the top of its repository, and whether the hub itself answered."""
    from huggingface_hub import HfApi, errors, snapshot_download

    revision, api = commit or model.revision, HfApi()
    try:
        info = api.model_info(model.repository, revision=revision, files_metadata=True)
        if info.gated:
            api.auth_check(model.repository)
    except errors.OfflineModeIsEnabled:
        found = Path(snapshot_download(model.repository, revision=revision, local_files_only=True, allow_patterns=[]))
        say(f"[{model}] offline: commit {found.name[:12]} from the hub's local cache")
        # the cache names a blob by the hub's digest
        there = [path for path in (*found.iterdir(), *found.glob(f"{MORE_TEMPLATES}/*")) if path.is_file()]
        blobs = {path.relative_to(found).as_posix(): path.resolve() for path in there}
        files = {
            name: _File(name, blob.stat().st_size, _promised(blob), SHA256.fullmatch(blob.name) is not None)
            for name, blob in blobs.items()
        }
        return found.name, files, False
    files = {}
    for entry in info.siblings or []:
        if is_plain(entry.rfilename):
            digest = entry.lfs.sha256 if entry.lfs else str(entry.blob_id)
            files[entry.rfilename] = _File(entry.rfilename, entry.size or 0, digest, entry.lfs is not None)
    return require_commit(str(model), info.sha), files, True


def _promised(blob: Path) -> str:
    """The digest a cached blob is named by; computed if the disk has no links, and so no blobs."""
    return blob.name if blob.parent.name == "blobs" else file_digest(blob)


def _require_promises(text: str, files: dict[str, _File], names: list[str]) -> None:
    for name in names:
        require_promise(text, name, files[name].expected, files[name].size, large=files[name].large)


def _weights(text: str, folder: Path, files: dict[str, _File]) -> list[str]:
    """The weight files, of which there must be some."""
    names = weight_files(text, folder, files)
    if not names:
        raise UserError(f"{text}: holds no weights in safetensors or PyTorch's format; it has {_some(files)}",
                        "give a model in Hugging Face's layout: config.json and safetensors")  # fmt: skip
    if names[0].endswith(WEIGHTS[1]):
        say(f"[{text}] its weights are pickles: they are read weights-only, no code in them runs")
    return names


def _parameters(
    model: HubModel, commit: str, files: dict[str, _File], folder: Path, large: list[str]
) -> dict[str, int] | None:
    """Number of parameters, in all and in routed experts, from the files' headers; None for pickles."""
    if not large or not large[0].endswith(WEIGHTS[0]):
        return None

    def header_here(name: str) -> Header:
        label = f"{model}: {name}"
        if (folder / name).is_file():
            return header_of(label, folder / name)
        # request only a part of the file: kilobytes instead of gigabytes
        beginning = _beginning(model, commit, name, HEADER)
        length = 8 + int.from_bytes(beginning[:8], "little")
        if HEADER < length <= LARGEST_HEADER:
            beginning = _beginning(model, commit, name, length)
        return header_from(label, io.BytesIO(beginning), files[name].size)

    with ThreadPoolExecutor(8) as pool:
        found = dict(zip(large, pool.map(header_here, large), strict=True))
    require_all(str(model), found, folder, config_of(folder))
    sizes = {tensor: math.prod(about.shape) for part in found.values() for tensor, about in part.items()}
    return {"total": sum(sizes.values()), "experts": sum(n for tensor, n in sizes.items() if ".experts." in tensor)}


def _beginning(model: HubModel, commit: str, name: str, length: int) -> bytes:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    address = hf_hub_url(model.repository, name, revision=commit)
    response = get_session().get(address, headers={**build_hf_headers(), "range": f"bytes=0-{length - 1}"})
    hf_raise_for_status(response)
    return response.content


def download(model: HubModel, commit: str, names: list[str]) -> Path:
    """Download files of a commit into the hub's cache with the library."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    before = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        patterns = [glob.escape(name) for name in names]
        folder = Path(snapshot_download(model.repository, revision=commit, allow_patterns=patterns))
    finally:
        if not before:
            enable_progress_bars()
    for name in names:  # the library names cached files by the response's headers, unchecked
        if not (folder / name).resolve().is_relative_to(folder.resolve().parent.parent):
            what = f"{model}: {name}: lies outside of the hub's cache, at {(folder / name).resolve()}"
            raise UserError(what, "check the mirror in HF_ENDPOINT, or the proxy; remove the link there")
    return folder


def _some(files: dict[str, Any]) -> str:
    return ", ".join(list(files)[:5]) + (", ..." if len(files) > 5 else "") if files else "no files"


PROGRESS_SECONDS = 5.0
RANGE = 32 * 2**20
"""Bytes per request, and the most that a kill loses."""
TRANSFERS = 8


def fetch(look: Look, into: Path) -> dict[str, str]:
    """Download missing files, check everything against the hub's digests, and link it into `into`.

    Returns:
        SHA-256 by name.

    Raises:
        UserError: no space, no connection, or content that differs from the hub's digests, even after a second try.
    """
    text, entries, cache_folder = str(look.model), look.artifact.manifest.files, look.require_room()
    names = list(entries)
    if look.missing:
        say(f"[{text}] downloading {size(look.missing_bytes)} of commit {look.commit[:12]} to {cache_folder}")
    place = HubPlace(look.model.repository, look.model.revision, "model")
    with hub_errors(text, place), full_disk_explained(cache_folder):
        with _progress(text, look):
            _resume(look, look.missing)
            download(look.model, look.commit, names)
        if damaged := _damaged(look):
            # the cached blob does not match its name: damaged on disk or in transit
            say(f"[{text}] {', '.join(damaged)}: not what the hub promises; fetching again")
            for name in damaged:
                (look.folder / name).resolve().unlink()
                (look.folder / name).unlink(missing_ok=True)
            _resume(look, {name: entries[name].bytes for name in damaged if SHA256.fullmatch(look.expected[name])})
            download(look.model, look.commit, names)
            damaged = _damaged(look)
    if damaged:
        what = f"{text}: {', '.join(damaged)}: the content has another digest than the hub promises"
        raise UserError(what, REMEDY)
    elsewhere = False
    for name in names:
        blob, target = (look.folder / name).resolve(), into / name
        target.parent.mkdir(exist_ok=True)
        try:
            os.link(blob, target)  # no second copy of the bytes, and they survive cleaning the hub's cache
        except OSError:
            target.symlink_to(blob)
            elsewhere = True
    if elsewhere:
        say(f"[{text}] the hub's cache is on another disk: the artifact links to it, and needs it: {cache_folder}")
    return {name: entry.sha256 for name, entry in look.artifact.manifest.files.items()}


def _resume(look: Look, sizes: dict[str, int]) -> None:
    """Download large files into the hub's cache by ranges, resuming where an earlier process was killed.

    The library's own download resumes only within one process.
    """
    from huggingface_hub import HfFileSystem

    blobs, system = look.folder.parent.parent / "blobs", HfFileSystem(skip_instance_cache=True)

    def bring(name: str) -> None:
        blob = blobs / look.expected[name]
        partial = blob.with_name(f"{blob.name}.partial")
        address = f"{look.model.repository}@{look.commit}/{name}"
        with locked(blob.with_name(f".{blob.name}.lock"), wait=True):  # another store may be downloading it, too
            if blob.is_file():
                return
            with partial.open("ab") as file, system.open(address, "rb", block_size=RANGE, cache_type="none") as there:
                while (begun := file.tell()) < sizes[name]:
                    there.seek(begun)
                    part = there.read(min(RANGE, sizes[name] - begun))
                    if not part:
                        what = (
                            f"{look.model}: {name}: ends after {begun} of the {sizes[name]} bytes that the hub promises"
                        )
                        raise UserError(what, REMEDY)
                    file.write(part)
                    file.flush()
            partial.replace(blob)

    with ThreadPoolExecutor(TRANSFERS) as pool:
        list(pool.map(bring, sizes))


def _damaged(look: Look) -> list[str]:
    """Files whose content differs from the hub's digest."""
    return [name for name, expected in look.expected.items() if not is_as_promised(look.folder / name, expected)]


@contextmanager
def _progress(text: str, look: Look) -> Generator[None]:
    """Show a download's progress, by the size of the cache."""
    blobs, done = look.folder.parent.parent / "blobs", threading.Event()

    def here() -> int:
        return sum(path.stat().st_size for path in blobs.glob("*") if path.exists())

    began, before = time.monotonic(), here()

    def watch() -> None:
        while not done.wait(PROGRESS_SECONDS):
            got, seconds = here() - before, time.monotonic() - began
            left = (look.missing_bytes - got) * seconds / got if got > 0 else 0
            renew(f"[{text}] {size(max(got, 0))} of {size(look.missing_bytes)}  {clock(max(left, 0))} left")

    watcher = threading.Thread(target=watch, daemon=True)
    if look.missing:
        watcher.start()
    try:
        yield
    finally:
        done.set()
        if look.missing:
            watcher.join()
