"""Remote files: `s3://`, `gs://`, `memory://` and `hf://datasets/...`, all through fsspec.

    for file in walk("s3://bucket/corpus"):
        file.path, file.size, file.version      # "s3://bucket/corpus/a.jsonl", 1_048_576, "9f86d081884c7d65"

Credentials come from the environment, as each service documents, never from a path; messages never show them.
"""

import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from glob import has_magic
from typing import Any, Literal

from nemotron_shared.errors import UserError, did_you_mean, how_to_add
from nemotron_shared.redaction import redact

SCHEMES = ("s3", "gs", "memory", "hf")
PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface-hub"}
LOGIN = {
    "s3": "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_PROFILE",
    "gs": "check GOOGLE_APPLICATION_CREDENTIALS, or run 'gcloud auth application-default login'",
    "hf": "set HF_TOKEN to a token that may read it",
}
# Names that services use for a value that changes with the content, most reliable first.
VERSION_KEYS = ("ETag", "etag", "md5Hash", "generation", "VersionId", "blob_id", "LastModified", "updated", "mtime")


Documents = Literal["auto", "whole", "blank_lines", "headings"]


@dataclass(frozen=True, slots=True)
class Reading:
    """Settings for reading files."""

    encoding: str | None = None
    """None: UTF-8, or UTF-16 if the file has its BOM."""
    documents: Documents = "whole"
    """What one document of a text file is."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file to read, in its state when the work was planned."""

    path: str
    """A local path, or a URL that `files.open_input` understands."""
    size: int
    """Size on disk or in the store, so the compressed size of a compressed file."""
    version: str
    """Changes when the content does: the modification time of a local file, a digest or time of a remote one."""
    commit: str | None = None
    """Commit of the hub repository that the file belongs to."""
    reading: Reading = Reading()
    rows: tuple[int, int | None] | None = None
    """Half-open range of rows to read, counting from 0; None: all."""
    target: str | None = None
    """Real path of a local file, if a link leads out of the named folder."""


def is_remote(path: str) -> bool:
    """Whether a path is a URL; raises `UserError` for an unsupported scheme."""
    scheme, separator, _ = path.partition("://")
    if not separator or "/" in scheme:
        return False
    if scheme not in SCHEMES:
        remedy = "download it first and name the local folder; readable are " + ", ".join(f"{s}://" for s in SCHEMES)
        raise UserError(f"{redact(path)}: '{scheme}://' paths are not supported", remedy)
    return True


def file_system(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL and the path inside it; raises `UserError` if its package is missing."""
    import fsspec

    scheme, _, rest = url.partition("://")
    if scheme != "hf" and "@" in rest.split("/")[0]:
        raise UserError(f"{redact(url)}: credentials in a path", LOGIN.get(scheme, "take them out"))
    try:
        return fsspec.core.url_to_fs(url)
    except ImportError as error:
        package = PACKAGES.get(scheme, "s3fs")
        raise UserError(
            f"{redact(url)}: {scheme}:// paths need the package {package}",
            how_to_add(package),
        ) from error


def walk(url: str, commit: str | None = None) -> list[InputFile]:
    """Files of a URL that names a file, a folder (recursive, without hidden ones) or a glob, sorted by path.

    Raises:
        UserError: nothing found, or the service refuses or cannot be reached.
    """
    with reported(url):
        system, path = file_system(url)
        if system.isfile(path):
            return [_file(url, system.info(path), commit)]
        folder = not has_magic(path) and system.isdir(path)
        list_files = system.find if folder else system.glob
        found = list_files(path, detail=True)
        files = [found[name] for name in sorted(found) if _is_visible_file(name, found[name], path)]
        if files:
            return [_file(url, info, commit) for info in files]
        parent, _, name = path.rstrip("/").rpartition("/")
        try:
            beside = [entry.rstrip("/").rpartition("/")[2] for entry in system.ls(parent, detail=False)]
        except FileNotFoundError:
            beside = []
        what = "an empty folder" if folder else "no such file"
        raise UserError(f"{redact(url)}: {what}", did_you_mean(name, beside) or "check the path")


def remote_file(url: str) -> InputFile:
    """Describe a file in its current state, bypassing fsspec's caches."""
    with reported(url):
        system, path = file_system(url)
        system.invalidate_cache()
        return _file(url, system.info(path))


@contextmanager
def reported(path: str) -> Generator[None]:
    """Turn read errors, on disk or in a store, into a `UserError` that names the path, without credentials."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    # every service raises its own family of errors, and none of these packages need be installed
    except Exception as error:
        name, (scheme, remote, _) = redact(path), path.partition("://")
        if isinstance(error, FileNotFoundError):
            what = "no such file" if remote else "no such file any more"
            otherwise = "put it back, or leave it out of the inputs"
            remedy = "check the path; a private one also looks like this" if remote else otherwise
        elif isinstance(error, PermissionError) and remote:
            what, remedy = "access is refused", LOGIN.get(scheme, "check who may read it")
        elif isinstance(error, PermissionError):
            name, what, remedy = str(error.filename or name), "may not be read", "check its permissions"
        elif remote:
            what = f"cannot be read: {type(error).__name__}: {redact(str(error))}"
            remedy = "; ".join(["check the connection", *filter(None, [LOGIN.get(scheme)])])
        elif isinstance(error, OSError):
            what, remedy = f"cannot be read: {error.strerror or error}", "check the disk, or fetch it again"
        else:
            raise
        raise UserError(f"{name}: {what}", remedy) from error


def _file(url: str, info: dict[str, Any], commit: str | None = None) -> InputFile:
    name = f"{url.partition('://')[0]}://{info['name'].lstrip('/')}"
    keys = (key for key in (*VERSION_KEYS, "created") if info.get(key))
    version = info["lfs"]["sha256"] if info.get("lfs") else info.get(next(keys, ""), "")
    return InputFile(name, int(info["size"]), str(version).strip('"'), commit)


def _is_visible_file(name: str, info: dict[str, Any], asked: str) -> bool:
    """Whether a file is visible.

    Names are hidden by a leading dot, unless the requested path has it; a name that ends in "/" marks a folder in a
    store.
    """
    if info["type"] != "file" or name.endswith("/"):
        return False
    fixed = re.split(r"[*?\[]", asked)[0].rpartition("/")[0] if has_magic(asked) else asked
    return "/." in asked[len(fixed) :] or "/." not in name[len(fixed) :]
