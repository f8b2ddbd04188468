"""One file to read: its format by its name, its state when the work is planned, and its identity.

    local_file("a.jsonl.gz")          # InputFile("a.jsonl.gz", size=1048576, version="1763726400000000000")
    format_of("a.jsonl.gz")           # Format("rows", "gz", ".jsonl.gz")

It is local, or at a URL of a store: `s3://`, `gs://`, `memory://` or `hf://`. Credentials come from the environment, as
each service documents, never from a path; messages never show them.
"""

import hashlib
import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nemotron_shared.system.errors import UserError, how_to_add
from nemotron_shared.system.redaction import redact

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
    """A local path, or a URL that `opening.open_input` understands."""
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


ROW_FORMATS = (".jsonl", ".ndjson", ".json")
DOCUMENT_FORMATS = (".txt", ".md")
TABLE_FORMATS = (".csv", ".tsv")
COMPRESSIONS = ("gz", "zst")
PARQUET = ".parquet"


@dataclass(frozen=True, slots=True)
class Format:
    """How to read a file: `a.jsonl.gz` has the content "rows", the compression "gz" and the ending ".jsonl.gz"."""

    content: Literal["rows", "table", "text", "parquet"]
    compression: str
    ending: str


FORMATS = {
    f"{ending}{packed}": Format(content, packed.removeprefix("."), f"{ending}{packed}")
    for content, endings in (("text", DOCUMENT_FORMATS), ("rows", ROW_FORMATS), ("table", TABLE_FORMATS))
    for ending in endings
    for packed in ("", *(f".{compression}" for compression in COMPRESSIONS))
} | {PARQUET: Format("parquet", "", PARQUET)}


def format_of(path: str | Path) -> Format:
    """Format by file name, ignoring case; raises `UserError` for an unknown extension."""
    name = str(path).lower()
    _, *endings = name.rsplit(".", 2)
    form = FORMATS.get("." + ".".join(endings)) or FORMATS.get(f".{endings[-1]}" if endings else "")
    if form is None:
        known = ", ".join((*DOCUMENT_FORMATS, *ROW_FORMATS, *TABLE_FORMATS))
        if name.endswith((".xlsx", ".xls", ".ods")):
            raise UserError(
                f"{redact(str(path))}: a spreadsheet cannot be read", "save it as CSV (UTF-8), and name that"
            )
        remedy = f"readable are {known} (each also as .gz and .zst) and {PARQUET}; a glob can pick the files"
        raise UserError(f"{redact(str(path))}: unknown extension", remedy)
    return form


def no_rows(path: str) -> UserError:
    """Error for a file without rows, which is probably a mistake."""
    return UserError(f"{path}: holds no rows", "remove it from the inputs, or write it again")


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


def local_file(path: str | Path, commit: str | None = None) -> InputFile:
    """Describe a local file in its current state; raises `UserError` if it cannot be reached."""
    place = path if isinstance(path, Path) else Path(path)
    with reported(str(place)):
        stat = place.stat()
    return InputFile(str(place), stat.st_size, str(stat.st_mtime_ns), commit)


def remote_file(url: str) -> InputFile:
    """Describe a file in its current state, bypassing fsspec's caches."""
    with reported(url):
        system, path = file_system(url)
        system.invalidate_cache()
        return file_at(url, system.info(path))


def file_at(url: str, info: dict[str, Any], commit: str | None = None) -> InputFile:
    """Describe a file of a store from `info`, as fsspec lists it."""
    name = f"{url.partition('://')[0]}://{info['name'].lstrip('/')}"
    keys = (key for key in (*VERSION_KEYS, "created") if info.get(key))
    version = info["lfs"]["sha256"] if info.get("lfs") else info.get(next(keys, ""), "")
    return InputFile(name, int(info["size"]), str(version).strip('"'), commit)


WHOLE_BYTES = 64 << 20
SAMPLES, SAMPLE_BYTES = 16, 64 << 10
AT_REST = "run again when nothing writes to it"
_identified: dict[str, tuple[int, str]] = {}
"""Size and version of the files that this process has identified last."""


def identity(file: InputFile) -> tuple[str, dict[str, Any]]:
    """SHA-256 that identifies the content, in hex, and the values it was computed from.

    For local files of up to 64 MiB it covers the content. For larger ones it covers size, modification time and 16
    evenly spread blocks of 64 KiB including the first and the last, so that planning does not read a terabyte twice.
    For remote files it covers size and the version reported by their store.
    """
    _identified[file.path] = file.size, file.version
    detail: dict[str, Any] = {"bytes": file.size} | ({"commit": file.commit} if file.commit else {})
    detail |= {"rows": list(file.rows)} if file.rows else {}
    detail |= {"target": file.target} if file.target else {}
    if is_remote(file.path):
        stamp = f"{file.size}\n{file.version}".encode()
        return hashlib.sha256(stamp).hexdigest(), detail | {"digest_of": "size and version"}
    with reported(file.path), open(file.path, "rb") as content:  # noqa: PTH123 - Path takes three times as long
        if file.size <= WHOLE_BYTES:
            return hashlib.file_digest(content, "sha256").hexdigest(), detail | {"digest_of": "content"}
        digest = hashlib.sha256(f"{file.size}\n{file.version}\n".encode())
        for number in range(SAMPLES):
            content.seek((file.size - SAMPLE_BYTES) * number // (SAMPLES - 1))
            digest.update(content.read(SAMPLE_BYTES))
    return digest.hexdigest(), detail | {"digest_of": "size, time and samples"}


def require_as_identified(files: Iterable[InputFile]) -> None:
    """Raise `UserError` for a file that has changed since `identity` described it for the record of the run."""
    for file in files:
        if _identified.get(file.path, (file.size, file.version)) != (file.size, file.version):
            raise UserError(f"{file.path}: changed since this run began", AT_REST)


def check_unchanged(file: InputFile) -> None:
    """Raise `UserError` if a file has changed since the work was planned.

    Files of a hub commit cannot change, so they are not checked.
    """
    remote = is_remote(file.path)
    if remote and file.commit:
        return
    now = remote_file(file.path) if remote else local_file(file.path)
    if not remote and not os.access(file.path, os.R_OK):
        raise UserError(f"{file.path}: may not be read", "check its permissions")
    if (now.size, now.version) != (file.size, file.version):
        raise UserError(f"{file.path}: changed while it was being read", AT_REST)
