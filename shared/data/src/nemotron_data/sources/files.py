"""Find input files, identify them, and open them: local ones, `s3://`, `gs://`, `memory://` and `hf://`.

    files = expand(["corpus/", "s3://bucket/more/*.jsonl.zst"])
    files[0]                          # InputFile("corpus/a.jsonl", size=1048576, version="1763726400000000000")
    with open_input(files[0]) as file:
        file.readline()               # b'{"text": "Once upon a time"}\\n'

Remote files go through fsspec, those of the hub through its own libraries. Credentials come from the environment, as
each service documents, never from a path; messages never show them. `.gz` and `.zst` are decompressed as a stream.
"""

import hashlib
import io
import os
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from glob import glob, has_magic
from pathlib import Path
from typing import IO, Any, Literal

from nemotron_shared.system.console import say
from nemotron_shared.system.errors import UserError, did_you_mean, how_to_add
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


FEED_BYTES = 1 << 12  # small, because four bytes of zstd can become 128 KiB; a larger one is not faster
BUFFER_BYTES = 1 << 20
MOST_WINDOW_BYTES = 1 << 31  # as `zstd --long=31` needs


class Converted(io.RawIOBase, ABC):
    """Forward-only stream of what another stream's content is converted to, piece by piece."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._ready = memoryview(b"")

    @abstractmethod
    def _next(self) -> bytes | None:
        """Convert one piece; None at the end of the file."""

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        while not self._ready:
            content = self._next()
            if content is None:
                return 0
            self._ready = memoryview(content)
        count = min(len(target), len(self._ready))
        target[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def close(self) -> None:
        self._source.close()
        super().close()


class _Decompressed(Converted):
    """The content of one compressed file.

    Files of several members or frames, as made by `cat a.gz b.gz`, `pigz` and `pzstd`, are read to their end.
    Uses a few MB of memory for any file size, and at most 128 MiB for a malicious file.
    """

    def __init__(self, source: IO[bytes], start: Callable[[], Any], broken: type[Exception], name: str) -> None:
        super().__init__(source)
        self._start, self._broken, self._name = start, broken, name
        self._member: Any = None
        self._rest = b""

    def _next(self) -> bytes | None:
        data = self._rest or self._source.read(FEED_BYTES)
        self._rest = b""
        if self._member is None:
            data = data.lstrip(b"\0") if self._broken is zlib.error else data  # tapes and tar pad gzip with zeros
            if not data:
                self._rest = self._source.read(FEED_BYTES)
                return b"" if self._rest else None
            self._member = self._start()
        if not data:
            raise UserError(f"{self._name}: cut short: the compressed stream has no end", "fetch the file again")
        try:
            content = self._member.decompress(data)
        except self._broken as error:
            raise UserError(f"{self._name}: cannot be decompressed: {error}", "fetch or write it again") from error
        if self._member.eof:
            self._rest, self._member = self._member.unused_data, None
        return content


def decompressed(source: IO[bytes], compression: str, name: str) -> io.BufferedReader:
    """Stream of the decompressed content of `source`; closes `source` when it is closed.

    Args:
        compression: "gz" or "zst".
        name: name of the file in error messages.

    Reading raises `UserError` if the file is truncated or damaged.
    """
    if compression == "gz":
        stream = _Decompressed(source, lambda: zlib.decompressobj(wbits=31), zlib.error, name)
    else:
        try:
            import zstandard
        except ModuleNotFoundError as error:
            what = f"{name}: zstandard, which reads .zst, is not installed for this Python"
            raise UserError(what, "unpack the file, with: unzstd FILE, or install zstandard") from error
        engine = zstandard.ZstdDecompressor(max_window_size=MOST_WINDOW_BYTES)
        stream = _Decompressed(source, engine.decompressobj, zstandard.ZstdError, name)
    return io.BufferedReader(stream, BUFFER_BYTES)


ROW_FORMATS = (".jsonl", ".ndjson", ".json")
DOCUMENT_FORMATS = (".txt", ".md")
TABLE_FORMATS = (".csv", ".tsv")
COMPRESSIONS = ("gz", "zst")
PARQUET = ".parquet"
WHOLE_BYTES = 64 << 20
DEAD_LINK, BRING_BACK = "a link that leads nowhere", "remove it, or bring its file back"
NO_FILE = "not a regular file"
SHOWN = 3
SAMPLES, SAMPLE_BYTES = 16, 64 << 10


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


def no_rows(path: str) -> UserError:
    """Error for a file without rows, which is probably a mistake."""
    return UserError(f"{path}: holds no rows", "remove it from the inputs, or write it again")


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


def expand(paths: Sequence[str | Path], *, subset: str | None = None, split: str | None = None) -> list[InputFile]:
    """Files that `paths` name, in order; a folder or glob gives its files sorted by path.

    Args:
        subset: the configuration of a hub data set, for `hf://` paths only.
        split: its split, likewise.

    Raises:
        UserError: a path names nothing, has an unknown extension or cannot be reached, a folder mixes rows and
            documents, or a file is named twice.
    """
    files = [file for path in paths for file in _files_at(os.fspath(path), subset, split)]
    for file in files:
        format_of(file.path)
    if len(files) > 1:
        _refuse_twice(files)
    return files


def _refuse_twice(files: Sequence[InputFile]) -> None:
    """Raise `UserError` if two of the files are the same."""
    seen: set[str] = set()
    real_folder = cache(os.path.realpath)  # once for each folder, not for each of ten thousand files
    for file in files:
        # two files in a hub cache may be links to the same content
        if file.commit or is_remote(file.path):
            place = file.path
        elif os.path.islink(file.path):  # noqa: PTH114 - Path takes three times as long
            place = os.path.realpath(file.path)
        else:
            folder, name = os.path.split(file.path)
            place = f"{real_folder(folder)}/{name}"
        if place in seen:
            raise UserError(f"{file.path}: named twice", "name every input once; a blend's weight repeats a data set")
        seen.add(place)


def local_file(path: str | Path, commit: str | None = None) -> InputFile:
    """Describe a local file in its current state; raises `UserError` if it cannot be reached."""
    place = path if isinstance(path, Path) else Path(path)
    with reported(str(place)):
        stat = place.stat()
    return InputFile(str(place), stat.st_size, str(stat.st_mtime_ns), commit)


def open_input(file: InputFile | str | Path) -> IO[bytes]:
    """Open a file; `.gz` and `.zst` files are decompressed, and can only be read forward.

    Raises:
        UserError: the file is gone or not readable; while reading: it is truncated or damaged.
    """
    path = file.path if isinstance(file, InputFile) else os.fspath(file)
    with reported(path):
        if is_remote(path):
            system, place = file_system(path)
            # fsspec's own readline takes no limit, and a line may be larger than memory
            opened: IO[bytes] = io.BufferedReader(system.open(place, "rb"), 1 << 20)
        else:
            opened = Path(path).open("rb")  # noqa: SIM115 (the caller closes it)
    compression = format_of(path).compression
    return decompressed(opened, compression, redact(path)) if compression else opened


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
    with reported(file.path), open(file.path, "rb") as content:  # noqa: PTH123 - see `_refuse_twice`
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


def not_mixed(folder: str, files: list[InputFile]) -> list[InputFile]:
    """Return the files of a folder unchanged; raises `UserError` if it has both rows and text documents."""
    forms = [format_of(file.path) for file in files]
    if len({form.content == "text" for form in forms}) == 2:
        rows = next(form.ending for form in forms if form.content != "text")
        what = f"name what you mean: '{folder.rstrip('/')}/**/*{rows}'"
        raise UserError(f"{folder}: holds both rows and text documents", what)
    return files


def _files_at(text: str, subset: str | None, split: str | None) -> list[InputFile]:
    if text.startswith("hf://"):
        from nemotron_data.sources.hub import hub_files

        return hub_files(text, subset=subset, split=split)
    if subset or split:
        key = "subset" if subset else "split"
        raise UserError(f"{text}: '{key}' only belongs to an hf:// path", f"leave '{key}' out and name the files")
    if is_remote(text):
        files = walk(text)
        folder = text not in {file.path for file in files} and not any(sign in text for sign in "*?[")
        return not_mixed(text, files) if folder else files
    path = Path(os.path.expanduser(text))  # noqa: PTH111 (Path's own fails where a name only begins with ~)
    files = _with_targets(path, [local_file(found) for found in local_paths(path)])
    return files if len(files) == 1 else not_mixed(str(path), files) if path.is_dir() else files


def _with_targets(named: Path, files: list[InputFile]) -> list[InputFile]:
    """Set the targets of files behind a link out of the named path, and print a note about them."""
    top = f"{os.path.realpath(named)}{os.sep}" if named.is_dir() else None
    real_folder = cache(os.path.realpath)  # see `_refuse_twice`
    found = []
    for file in files:
        linked = os.path.islink(file.path)  # noqa: PTH114 - see `_refuse_twice`
        folder = "" if top is None or linked else f"{real_folder(os.path.dirname(file.path))}{os.sep}"  # noqa: PTH120
        place = os.path.realpath(file.path) if linked or not folder.startswith(top or "") else None
        found.append(replace(file, target=place) if place and not place.startswith(top or "\0") else file)
    away = [file for file in found if file.target]
    if away:
        few = ", ".join(f"{file.path} -> {file.target}" for file in away[:SHOWN])
        more = f" and {len(away) - SHOWN:,} more" if len(away) > SHOWN else ""
        _say_once(f"{named}: links lead elsewhere: {few}{more}")
    return found


@cache
def _say_once(line: str) -> None:
    """Print once, although a run looks for files several times."""
    say(line)


def local_paths(path: Path) -> list[Path]:
    """Files that a local file, folder or glob names, sorted; raises `UserError` if nothing is found."""
    with reported(str(path)):
        if path.is_file():
            return [path]
        if path.is_dir():
            found = sorted(_tree(path, set()), key=str)
            if not found:
                raise UserError(f"{path}: an empty folder", "name a folder with files in it")
            return found
        # not Path.glob: it refuses absolute patterns and finds hidden files
        matches = [path] if path.exists() else map(Path, sorted(glob(str(path), recursive=True)))  # noqa: PTH207
        files = [match for match in matches if match.is_file()]
    if not files and path.is_symlink():
        raise UserError(f"{path}: {DEAD_LINK}", BRING_BACK)
    if not files and path.exists():
        raise UserError(f"{path}: {NO_FILE}", "name a file, a folder or a glob")
    if not files:
        # the remedy is the name nearest to the first part of the path that does not exist
        missing = next((part for part in reversed(path.absolute().parents) if not part.exists()), path.absolute())
        beside = (entry.name for entry in missing.parent.iterdir()) if missing.parent.is_dir() else ()
        above = f"{missing.parent} holds no '{missing.name}'" if missing != path.absolute() else "check the path"
        remedy = did_you_mean(missing.name, beside) or above
        raise UserError(f"{path}: no such file", remedy)
    return files


def _tree(folder: Path, above: set[Path]) -> Iterable[Path]:
    """Visible files below a folder, following links. Nothing is skipped silently: dead links and pipes are errors."""
    real = folder.resolve()
    if real in above:
        raise UserError(f"{folder}: a link to a folder that contains it", "remove the link")
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            place = Path(entry.path)
            if entry.is_dir():
                yield from _tree(place, above | {real})
            elif entry.is_file():
                yield place
            else:
                raise UserError(f"{place}: {NO_FILE if place.exists() else DEAD_LINK}", BRING_BACK)
