"""Read rows from local files, one at a time, and say exactly where a bad one is.

    for row in read_rows(["corpus/*.jsonl", "books/"]):
        row.value["text"], row.file, row.line      # "Once upon", "corpus/a.jsonl", 17

A blend file lists weighted data sets, with paths relative to itself:

    {"datasets": [{"name": "web", "path": "web/*.jsonl", "weight": 3}, {"name": "books", "path": "books/"}]}
"""

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import glob
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nemotron_shared.atomic import read_json
from nemotron_shared.data.rejects import Rejects, snippet_of
from nemotron_shared.digest import file_digest, tree_files
from nemotron_shared.errors import UserError, did_you_mean

ROW_FORMATS = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".parquet")
DOCUMENT_FORMATS = (".txt", ".md")
REMOTE = ("hf://", "s3://", "gs://", "http://", "https://")


@dataclass(frozen=True, slots=True)
class Row:
    """One record and its place: `line` counts from 1, in Parquet it is the row number."""

    value: dict[str, Any]
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class BadRow:
    """A record that is no JSON object, and why."""

    file: str
    line: int
    reason: str
    detail: str
    snippet: str


@dataclass(slots=True)
class ReadCounts:
    """What `read_rows` has seen so far."""

    rows: int = 0
    blank_lines: int = 0
    rejected: int = 0


def read_rows(
    paths: Sequence[str | Path],
    *,
    limit: int | None = None,
    on_bad: Literal["error", "reject"] = "error",
    rejects: Rejects | None = None,
    counts: ReadCounts | None = None,
) -> Iterator[Row]:
    """Rows of files, folders (recursive, sorted) and globs, in the order of `paths`, at most `limit` of them.

    A text file is one row, {"text": ...}. Blank lines are skipped and counted. With `on_bad="reject"` a bad line goes
    to `rejects`; otherwise it raises `UserError`, as do missing, unreadable and empty files and unknown extensions.
    """
    if (on_bad == "reject") != (rejects is not None):
        raise ValueError("on_bad='reject' and rejects belong together")
    if limit is not None and limit < 1:
        raise UserError(f"a limit of {limit} rows reads nothing", "give a number from 1, or none at all")
    return islice(_rows_of(expand(paths), rejects, counts or ReadCounts()), limit)


def _rows_of(files: list[Path], rejects: Rejects | None, counts: ReadCounts) -> Iterator[Row]:
    for file in files:
        seen_before = counts.rows + counts.rejected
        for row in _records(file, counts):
            if isinstance(row, Row):
                counts.rows += 1
                yield row
            elif rejects is None:
                what = f"{row.file}:{row.line}: {row.reason}: {row.detail}\n  {row.snippet}"
                raise UserError(what, "put the line right or delete it, or let bad lines be rejected and counted")
            else:
                counts.rejected += 1
                rejects.add(row.file, row.line, row.reason, row.snippet, row.detail)
        if counts.rows + counts.rejected == seen_before:
            raise UserError(f"{file}: holds no rows", "remove it from the inputs, or write it again")


def _records(file: Path, counts: ReadCounts) -> Iterator[Row | BadRow]:
    ending = _format_of(file)
    try:
        if ending == ".parquet":
            yield from _parquet_rows(file)
        elif ending in DOCUMENT_FORMATS:
            yield _document(file)
        else:
            with gzip.open(file) if ending.endswith(".gz") else file.open("rb") as lines:
                yield from _json_rows(file, lines, counts)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{file}: cannot be read: {error}", "the file may be cut short; fetch it again") from error


def _json_rows(file: Path, lines: IO[bytes] | gzip.GzipFile, counts: ReadCounts) -> Iterator[Row | BadRow]:
    """Binary files end lines at the newline byte only, so U+2028 inside a text does not cut it."""
    name = file.as_posix()
    for number, raw in enumerate(lines, start=1):
        line = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
        if not line.strip():
            counts.blank_lines += 1
            continue
        try:
            value = parse_json(line)
        except (ValueError, RecursionError) as error:
            reason = "invalid UTF-8" if "UTF-8" in str(error) else "malformed JSON"
            yield BadRow(name, number, reason, str(error), snippet_of(line.strip()))
            continue
        if isinstance(value, dict):
            yield Row(value, name, number)
        else:
            detail = f"one object per line is needed, not one {type(value).__name__}"
            yield BadRow(name, number, "not a JSON object", detail, snippet_of(line.strip()))


def parse_json(line: bytes) -> Any:
    """Strict JSON: NaN and lone surrogates are errors, and integers of any size stay exact."""
    value = orjson.loads(line)
    return json.loads(line) if _may_have_lost_digits(value) else value


def _may_have_lost_digits(value: Any) -> bool:
    """orjson turns an integer beyond 64 bits into a float."""
    if isinstance(value, float):
        return abs(value) >= 2**63
    if isinstance(value, dict):
        return any(map(_may_have_lost_digits, value.values()))
    return isinstance(value, list) and any(map(_may_have_lost_digits, value))


def _document(file: Path) -> Row | BadRow:
    content = file.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return BadRow(file.as_posix(), 1, "invalid UTF-8", str(error), snippet_of(content))
    if not text.strip():
        return BadRow(file.as_posix(), 1, "empty document", "nothing but white space", "")
    return Row({"text": text}, file.as_posix(), 1)


def _parquet_rows(file: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as table:
            number = 0
            for batch in table.iter_batches(batch_size=1024, use_threads=False):
                for value in batch.to_pylist():
                    number += 1
                    yield Row(value, file.as_posix(), number)
    except pa.ArrowException as error:
        raise UserError(f"{file}: not a readable Parquet file: {error}", "fetch or write it again") from error


def expand(paths: Sequence[str | Path]) -> list[Path]:
    """The files that `paths` name, in order; a folder or glob gives its files sorted by path.

    Raises `UserError` for a path that names nothing, an unknown extension, a folder that mixes rows and documents,
    and a file that is named twice.
    """
    files = [file for path in paths for file in _files_at(str(path))]
    seen: set[Path] = set()
    for file in files:
        _format_of(file)
        if file.resolve() in seen:
            raise UserError(f"{file}: named twice", "name every input once; a blend's weight repeats a data set")
        seen.add(file.resolve())
    return files


def _files_at(text: str) -> list[Path]:
    _refuse_remote(text)
    path = Path(text).expanduser()
    if path.is_dir():
        return _files_in(path)
    # not Path.glob: it refuses absolute patterns and finds hidden files
    matches = [path] if path.exists() else map(Path, sorted(glob(str(path), recursive=True)))  # noqa: PTH207
    files = [match for match in matches if match.is_file()]
    if not files:
        raise UserError(f"{path}: no such file", _neighbour_of(path))
    return files


def _refuse_remote(text: str) -> None:
    if text.startswith(REMOTE):
        raise UserError(f"{text}: remote paths are not supported yet", "download it first and name the local folder")


def _files_in(folder: Path) -> list[Path]:
    visible = [f for f in tree_files(folder) if not any(p.startswith(".") for p in f.relative_to(folder).parts)]
    if not visible:
        raise UserError(f"{folder}: an empty folder", "name a folder with files in it")
    if len({_format_of(file) in DOCUMENT_FORMATS for file in visible}) == 2:
        rows = next(filter(ROW_FORMATS.__contains__, map(_format_of, visible)))
        raise UserError(f"{folder}: holds both rows and text documents", f"name what you mean: '{folder}/**/*{rows}'")
    return visible


def _format_of(file: Path) -> str:
    known = (*DOCUMENT_FORMATS, *ROW_FORMATS)
    ending = next((ending for ending in known if file.name.lower().endswith(ending)), None)
    if ending is None:
        raise UserError(f"{file}: unknown extension", f"readable are {', '.join(known)}; a glob can pick the files")
    return ending


def _neighbour_of(path: Path) -> str:
    """A remedy for a missing path: the name nearest to the first part of it that does not exist."""
    missing = next((part for part in reversed(path.absolute().parents) if not part.exists()), path.absolute())
    beside = (entry.name for entry in missing.parent.iterdir()) if missing.parent.is_dir() else ()
    return did_you_mean(missing.name, beside) or f"{missing.parent} holds no '{missing.name}'"


def source_digests(paths: Sequence[str | Path]) -> list[dict[str, Any]]:
    """What the inputs were: {"uri": path, "digest": SHA-256 of the content in hex, "detail": {"bytes": size}}."""
    return [
        {"uri": file.as_posix(), "digest": file_digest(file), "detail": {"bytes": file.stat().st_size}}
        for file in expand(paths)
    ]


class BlendEntry(BaseModel):
    """One data set of a blend. `path` is a file, folder or glob; `split` and `subset` only name a hub data set."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    name: str = Field(min_length=1)
    path: str = Field(min_length=1)
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    split: str | None = None
    subset: str | None = None
    text_field: str = Field(default="text", min_length=1)


class Blend(BaseModel):
    """Data sets to be split by us (`datasets`), or already split by their owner (the other three)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    datasets: list[BlendEntry] = []
    train: list[BlendEntry] = []
    valid: list[BlendEntry] = []
    test: list[BlendEntry] = []


def load_blend(path: Path) -> Blend:
    """Read a blend file; keys that begin with "_" are comments, weights stay as written, paths become complete."""
    try:
        blend = Blend.model_validate(_without_comments(read_json(path)))
    except ValidationError as error:
        raise _blend_error(path, error) from error
    if bool(blend.datasets) == bool(blend.train) or (blend.datasets and (blend.valid or blend.test)):
        raise UserError(f"{path}: needs either 'datasets' or 'train', 'valid' and 'test'", "fill one of the two forms")
    return Blend(**{key: _located(path, key, getattr(blend, key)) for key in Blend.model_fields})


def _located(path: Path, key: str, entries: list[BlendEntry]) -> list[BlendEntry]:
    located: dict[str, BlendEntry] = {}
    for entry in entries:
        _refuse_remote(entry.path)
        if entry.name in located:
            raise UserError(f"{path}: {key}: '{entry.name}' comes twice", "give every data set its own name")
        located[entry.name] = entry.model_copy(update={"path": str(path.parent / Path(entry.path).expanduser())})
    return list(located.values())


def _without_comments(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _without_comments(value) for key, value in content.items() if not key.startswith("_")}
    return [_without_comments(item) for item in content] if isinstance(content, list) else content


def _blend_error(path: Path, error: ValidationError) -> UserError:
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"])) or "the top level"
    if first["type"] != "extra_forbidden":
        return UserError(f"{path}: {where}: {first['msg']}", "an entry needs a name and a path, the rest is optional")
    known = Blend.model_fields if len(first["loc"]) == 1 else BlendEntry.model_fields
    remedy = did_you_mean(str(first["loc"][-1]), known, f"known are {', '.join(known)}")
    return UserError(f"{path}: unknown key '{where}'", remedy)
