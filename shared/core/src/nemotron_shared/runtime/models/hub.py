"""A model on the hub: inspected before anything large is downloaded, then fetched, checked, and linked into a folder.

    look = look_at(HubModel("org/name"), weights=True, trusted=False)
    look.commit, look.artifact.manifest.files, look.missing_bytes
    fetch(look, into)

huggingface_hub does the transfers: its cache, resumed downloads, HF_TOKEN, HF_ENDPOINT, proxies, HF_HUB_OFFLINE. We
add what it lacks: which files make up a model, and whether their content has the promised digest.
"""

import glob
import io
import math
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from nemotron_shared.artifacts.artifact import NOBODY, Artifact, table_digest, utc
from nemotron_shared.artifacts.manifest import FileEntry, Manifest
from nemotron_shared.digest import file_digest
from nemotron_shared.errors import UserError
from nemotron_shared.hub_errors import HubPlace, hub_errors
from nemotron_shared.runtime.console import say
from nemotron_shared.runtime.disk import size
from nemotron_shared.runtime.models.code import config_of, needs_code, require_loadable
from nemotron_shared.runtime.models.promises import (
    SHA256,
    check_answers,
    is_plain,
    require_commit,
    require_promise,
)
from nemotron_shared.runtime.models.references import HubModel
from nemotron_shared.runtime.models.weights import (
    LARGEST_HEADER,
    WEIGHTS,
    require_all,
    shapes,
    shapes_of,
    weight_files,
)

TOKENIZER_FILES = re.compile(
    r"tokenizer\.(json|model)|tokenizer_config\.json|special_tokens_map\.json|added_tokens\.json|vocab\.(json|txt)"
    r"|merges\.txt|chat_template\.(jinja|json)"
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
        name=model.name(), version=0, type="ModelArtifact" if weights else "TokenizerArtifact",
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
        blobs = {path.name: path.resolve() for path in found.iterdir() if path.is_file()}
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

    def shapes_here(name: str) -> dict[str, list[int]]:
        label = f"{model}: {name}"
        if (folder / name).is_file():
            return shapes_of(label, folder / name)
        # request only a part of the file: kilobytes instead of gigabytes
        beginning = _beginning(model, commit, name, HEADER)
        length = 8 + int.from_bytes(beginning[:8], "little")
        if HEADER < length <= LARGEST_HEADER:
            beginning = _beginning(model, commit, name, length)
        return shapes(label, io.BytesIO(beginning), files[name].size)

    with ThreadPoolExecutor(8) as pool:
        found = dict(zip(large, pool.map(shapes_here, large), strict=True))
    require_all(str(model), found, folder, config_of(folder))
    sizes = {tensor: math.prod(shape) for part in found.values() for tensor, shape in part.items()}
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
