"""A model on the hub: looked at before anything large is fetched, then fetched, checked, and linked into a folder.

    look = look_at(HubModel("org/name"), weights=True, trusted=False)
    look.commit, look.artifact.manifest.files, look.missing_bytes
    fetch(look, into)

huggingface_hub does the transfers: its cache, resumed downloads, HF_TOKEN, HF_ENDPOINT, proxies, HF_HUB_OFFLINE. What
it leaves open is done here: which files make a model, and whether what arrived has the promised digest.
"""

import glob
import hashlib
import json
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
from nemotron_shared.atomic import read_json
from nemotron_shared.digest import file_digest
from nemotron_shared.errors import UserError
from nemotron_shared.hub_errors import HubPlace, hub_errors
from nemotron_shared.lock import locked
from nemotron_shared.runtime.console import clock, renew, say
from nemotron_shared.runtime.disk import full_disk_explained, size
from nemotron_shared.runtime.models.code import config_of, needs_code, require_loadable
from nemotron_shared.runtime.models.references import HubModel

TOKENIZER_FILES = re.compile(
    r"tokenizer\.(json|model)|tokenizer_config\.json|special_tokens_map\.json|added_tokens\.json|vocab\.(json|txt)"
    r"|merges\.txt|chat_template\.(jinja|json)"
)
MODEL_FILES = re.compile(r"[\w.-]+\.json|LICENSE\S*|NOTICE\S*")
INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
SINGLES = ("model.safetensors", "pytorch_model.bin")
WEIGHTS = (".safetensors", ".bin")
SHA256, GIT = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")
PROGRESS_SECONDS = 5.0
RANGE = 32 * 2**20
"""Bytes of one request, and what a kill loses at most."""
TRANSFERS = 8


@dataclass(frozen=True)
class Look:
    """What is known of a model before its weights are here.

    Attributes:
        model: as it was asked for; `commit` is what that stands for.
        folder: the commit's folder in the hub's cache, in which the small files are.
        expected: SHA-256 of a file, or git's SHA-1 for one that the hub keeps in git.
        artifact: what an import would make: its files with their digests, so that its identity is known.
        missing: names and bytes of what is not in the hub's cache.
        online: whether the hub was asked.
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
        """What an import would download."""
        return sum(self.missing.values())

    def require_room(self) -> Path:
        """The hub's cache, which has room for what is missing.

        Raises:
            UserError: it has not.
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
    """A file of a repository as the hub, or its cache, describes it; `large` ones lie outside of git."""

    name: str
    size: int
    expected: str
    large: bool


@cache
def look_at(model: HubModel, *, weights: bool, trusted: bool, commit: str | None = None) -> Look:
    """Ask the hub, or its local cache where it is offline; fetch what is small, and judge the config.

    One process asks once, so that its checks and its import speak of one commit.

    Args:
        weights: False for a tokenizer alone.
        trusted: Python files of the model may come along.
        commit: known from before.

    Raises:
        UserError: there is no such model, or one may not read it, or nothing here could load it.
    """
    text = str(model)
    with hub_errors(text, HubPlace(model.repository, model.revision, "model")):
        found, files, online = _files_of(model, commit)
        small = [file.name for file in files.values() if TOKENIZER_FILES.fullmatch(file.name)]
        if weights:
            small += [name for name in files if MODEL_FILES.fullmatch(name) and name not in small]
        folder = _download(model, found, small)
        config = config_of(folder)
        if weights and not (config.get("model_type") or config.get("auto_map")):
            remedy = "give a model in Hugging Face's layout: config.json and safetensors"
            raise UserError(f"{text}: holds no config.json of a model; it has {_some(files)}", remedy)
        if not weights and "tokenizer.json" not in small:
            raise UserError(f"{text}: holds no tokenizer.json; it has {_some(files)}", "give another tokenizer")
        large: list[str] = []
        if weights:
            require_loadable(text, config, trusted=trusted)
            code = [name for name in files if name.endswith(".py")] if needs_code(config) else []
            large = _weights(text, folder, files)
            # weights that lie in git are as small as what else does, and only their content tells their SHA-256
            small += code + [name for name in large if not files[name].large]
            folder = _download(model, found, small)
        large = [name for name in large if files[name].large]
        entries = {name: FileEntry(file_digest(folder / name), (folder / name).stat().st_size) for name in small}
        entries |= {name: FileEntry(files[name].expected, files[name].size) for name in large}
        missing = {name: files[name].size for name in large if not (folder / name).is_file()}
        metadata = {"weights": _parameters(model, found, missing, folder, large)} if weights else {}
    chosen = dict(sorted(entries.items()))
    manifest = Manifest(
        name=model.name(), version=0, type="ModelArtifact" if weights else "TokenizerArtifact",
        created_at=utc(time.time()), fingerprint=table_digest(chosen), digest=table_digest(chosen), files=chosen,
        producer=NOBODY, parents=(), sources=(), metadata=metadata, metrics={},
    )  # fmt: skip
    expected = {name: files[name].expected for name in chosen}
    return Look(model, found, folder, expected, Artifact(manifest, folder), missing, online)


def fetch(look: Look, into: Path) -> dict[str, str]:
    """Download what is missing, compare it all with what the hub promised, and give it a second name in `into`.

    Returns:
        SHA-256 by name.

    Raises:
        UserError: no room, no connection, or content that is not what the hub promised, even when fetched again.
    """
    text, entries, cache_folder = str(look.model), look.artifact.manifest.files, look.require_room()
    names = list(entries)
    if look.missing:
        say(f"[{text}] downloading {size(look.missing_bytes)} of commit {look.commit[:12]} to {cache_folder}")
    place = HubPlace(look.model.repository, look.model.revision, "model")
    with hub_errors(text, place), full_disk_explained(cache_folder):
        with _progress(text, look):
            _resume(look, look.missing)
            _download(look.model, look.commit, names)
        if damaged := _damaged(look):
            # a blob of the cache that is not what its name says: gone wrong on the disk, or on the way
            say(f"[{text}] {', '.join(damaged)}: not what the hub promises; fetching again")
            for name in damaged:
                (look.folder / name).resolve().unlink()
                (look.folder / name).unlink(missing_ok=True)
            _resume(look, {name: entries[name].bytes for name in damaged if SHA256.fullmatch(look.expected[name])})
            _download(look.model, look.commit, names)
            damaged = _damaged(look)
    if damaged:
        what = f"{text}: {', '.join(damaged)}: the content has another digest than the hub promises"
        raise UserError(what, "check the mirror in HF_ENDPOINT, or the proxy; nothing was imported")
    elsewhere = False
    for name in names:
        blob, target = (look.folder / name).resolve(), into / name
        try:
            os.link(blob, target)  # the bytes exist once, and stay when the hub's cache is cleaned
        except OSError:
            target.symlink_to(blob)
            elsewhere = True
    if elsewhere:
        say(f"[{text}] the hub's cache is on another disk: the artifact links to it, and needs it: {cache_folder}")
    return {name: entry.sha256 for name, entry in look.artifact.manifest.files.items()}


def _files_of(model: HubModel, commit: str | None) -> tuple[str, dict[str, _File], bool]:
    """The commit, its files at the top of the repository, and whether the hub itself has told."""
    from huggingface_hub import HfApi, errors, snapshot_download

    revision, api = commit or model.revision, HfApi()
    try:
        info = api.model_info(model.repository, revision=revision, files_metadata=True)
        if info.gated:
            api.auth_check(model.repository)
    except errors.OfflineModeIsEnabled:
        found = Path(snapshot_download(model.repository, revision=revision, local_files_only=True, allow_patterns=[]))
        say(f"[{model}] offline: commit {found.name[:12]} from the hub's local cache")
        # the cache calls a blob by what the hub promised
        blobs = {path.name: path.resolve() for path in found.iterdir() if path.is_file()}
        files = {
            name: _File(name, blob.stat().st_size, blob.name, SHA256.fullmatch(blob.name) is not None)
            for name, blob in blobs.items()
        }
        return found.name, files, False
    files = {}
    for entry in info.siblings or []:
        if "/" not in entry.rfilename:
            digest = entry.lfs.sha256 if entry.lfs else str(entry.blob_id)
            files[entry.rfilename] = _File(entry.rfilename, entry.size or 0, digest, entry.lfs is not None)
    return str(info.sha), files, True


def _weights(text: str, folder: Path, files: dict[str, _File]) -> list[str]:
    """The files with the weights: safetensors where there are any, else pickles, which are read weights-only."""
    for index, single in zip(INDICES, SINGLES, strict=True):
        names = [single] if single in files else []
        if (folder / index).is_file():
            names = sorted(set(read_json(folder / index).get("weight_map", {}).values()))
        if absent := [name for name in names if name not in files]:
            what = f"{text}: {index} names files that are not there: {', '.join(absent[:3])}"
            raise UserError(
                what, f"the repository, or the hub's cache, is incomplete: hf download {text[5:].partition('@')[0]}"
            )
        if names:
            if single == SINGLES[1]:
                say(f"[{text}] its weights are pickles: they are read weights-only, no code in them runs")
            return names
    raise UserError(f"{text}: holds no weights in safetensors or PyTorch's format; it has {_some(files)}",
                    "give a model in Hugging Face's layout: config.json and safetensors")  # fmt: skip


def _parameters(
    model: HubModel, commit: str, missing: dict[str, int], folder: Path, large: list[str]
) -> dict[str, int] | None:
    """How many there are, all and in routed experts, from the headers of the files; None where they are pickles."""
    from huggingface_hub import HfApi

    if not large or not large[0].endswith(WEIGHTS[0]):
        return None

    def shapes(name: str) -> dict[str, list[int]]:
        if name in missing:  # the hub gives a part of a file: some kilobytes instead of gigabytes
            header = HfApi().parse_safetensors_file_metadata(model.repository, name, revision=commit)
            return {tensor: list(about.shape) for tensor, about in header.tensors.items()}
        with (folder / name).open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        return {tensor: about["shape"] for tensor, about in header.items() if tensor != "__metadata__"}

    with ThreadPoolExecutor(8) as pool:
        sizes = {tensor: math.prod(shape) for part in pool.map(shapes, large) for tensor, shape in part.items()}
    return {"total": sum(sizes.values()), "experts": sum(n for tensor, n in sizes.items() if ".experts." in tensor)}


def _download(model: HubModel, commit: str, names: list[str]) -> Path:
    """Bring files of a commit into the hub's cache, as the library does it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    before = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        patterns = [glob.escape(name) for name in names]
        return Path(snapshot_download(model.repository, revision=commit, allow_patterns=patterns))
    finally:
        if not before:
            enable_progress_bars()


def _resume(look: Look, sizes: dict[str, int]) -> None:
    """Bring large files into the hub's cache by ranges, going on where an earlier process was killed.

    The library's own download goes on within one process, and begins again in the next.
    """
    from huggingface_hub import HfFileSystem

    blobs, system = look.folder.parent.parent / "blobs", HfFileSystem(skip_instance_cache=True)

    def bring(name: str) -> None:
        blob = blobs / look.expected[name]
        partial = blob.with_name(f"{blob.name}.partial")
        address = f"{look.model.repository}@{look.commit}/{name}"
        with locked(blob.with_name(f".{blob.name}.lock"), wait=True):  # another store may want it, too
            if blob.is_file():
                return
            with partial.open("ab") as file, system.open(address, "rb", block_size=RANGE, cache_type="none") as there:
                while (begun := file.tell()) < sizes[name]:
                    there.seek(begun)
                    file.write(there.read(min(RANGE, sizes[name] - begun)))
                    file.flush()
            partial.replace(blob)

    with ThreadPoolExecutor(TRANSFERS) as pool:
        list(pool.map(bring, sizes))


def _damaged(look: Look) -> list[str]:
    """The files whose content is not what the hub promised."""
    return [name for name, expected in look.expected.items() if not _is_as_promised(look.folder / name, expected)]


def _is_as_promised(path: Path, expected: str) -> bool:
    if SHA256.fullmatch(expected):
        return file_digest(path) == expected
    if GIT.fullmatch(expected):
        content = path.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest() == expected
    return True  # a mirror with names of its own promises nothing


@contextmanager
def _progress(text: str, look: Look) -> Generator[None]:
    """Say how far a download is, by what lies in the cache."""
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


def _some(files: dict[str, Any]) -> str:
    return ", ".join(list(files)[:5]) + (", ..." if len(files) > 5 else "") if files else "no files"
