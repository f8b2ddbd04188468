"""Detect what files hold, from the first rows of the first of them: chats of some format, or documents.

found = detect_files(expand(["people.csv"]))
found.kind, found.format, found.reason     # "chat", "question_answer", "question_answer, from the fields ..."
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from nemotron_data.chat.formats import AUTO, CHAT_FORMATS, DOCUMENT, TEXT_FIELDS, Recognised, recognise
from nemotron_data.chat.loss_marks import NOTHING, is_mark
from nemotron_data.chat.rows import REASONING_NAMES, SYSTEM_FIELDS, TOOL_FIELDS, listed
from nemotron_data.sources.input_file import InputFile, format_of, no_rows
from nemotron_data.sources.reading import NOT_UTF_8, BadRow, Row, read_files
from nemotron_data.sources.text import require_text
from nemotron_shared.system.errors import UserError

ROWS, FILES = 100, 8
CORRECT = "none of its first rows can be read: correct the file, or write it again"
BESIDE = {*SYSTEM_FIELDS, *TOOL_FIELDS}
"""Optional fields that are read with every format; a format's own are in its `beside`."""
KEYS_OF_TURNS = {
    *("role", "content", "from", "value", "name", "tool_calls", "tool_call_id", "function_call"),
    *REASONING_NAMES,
}


@dataclass(frozen=True)
class Detected:
    """Contents of files.

    Attributes:
        format: one of `CHAT_FORMATS`; `auto` if files or rows differ, "text" for documents.
        fields: fields that are used.
        unread: other fields, which are not used.
        reason: explanation for people.
        in_turns: unknown keys of turns, passed to the chat template unchanged.
        marks: fields that say what is learnt of the rows, such as "loss_mask of a turn".
    """

    kind: Literal["chat", "text"]
    format: str
    fields: tuple[str, ...]
    unread: tuple[str, ...]
    reason: str
    in_turns: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()


def detect_files(files: Sequence[InputFile], also: Sequence[str] = ()) -> Detected:
    """Detect the contents of files. Reads only the head of the first ones.

    Args:
        also: additional fields that settings use.

    Raises:
        UserError: nothing readable, or rows of an unknown format.
    """
    if all(format_of(file.path).content == "text" for file in files):
        return Detected(
            "text", "text", ("text",), (), f"text, from files that end in {format_of(files[0].path).ending}"
        )
    rows, bad = [], None
    for row in head_rows(files):
        if isinstance(row, Row):
            rows.append(row)
        else:
            bad = bad or row
    if not rows:
        if bad is None:
            raise no_rows(files[0].path)
        if bad.why.reason == NOT_UTF_8:
            require_text(next(file for file in files if file.path == bad.file))
        raise UserError(f"{bad.file}:{bad.line}: {bad.why.reason}: {bad.why.detail}", bad.why.finding.remedy or CORRECT)
    return _of_rows(rows, also)


def head_rows(files: Sequence[InputFile]) -> Iterator[Row | BadRow]:
    """Up to 100 rows from the beginning of up to 8 files."""
    some = files[:FILES]
    for file in some:
        yield from islice(read_files([file]), -(-ROWS // len(some)))


def _of_rows(rows: Sequence[Row], also: Sequence[str]) -> Detected:
    found: Counter[Recognised] = Counter()
    wrong: list[tuple[Row, UserError]] = []
    for row in rows:
        try:
            found[recognise(row.value)] += 1
        except UserError as error:
            wrong.append((row, error))
    if not found:
        row, error = wrong[0]
        if error.message.startswith(DOCUMENT):
            fields = tuple(name for name in row.value if name.lower() in TEXT_FIELDS)
            return Detected(
                "text", "text", fields, unread_in(rows, [*fields, *also]), f"text, from the field {fields[0]}"
            )
        raise UserError(f"{row.file}:{row.line}: {error.message}", f"{error.remedy}\n  {FORMATS_THERE}")
    fields = tuple(dict.fromkeys(name for one in found for name in one.fields))
    formats = Counter(dict.fromkeys(dict.fromkeys(one.format for one in found), 0))
    for one, count in found.items():
        formats[one.format] += count
    unread = unread_in(rows, [*fields, *also], *formats)
    if len(formats) > 1:
        mixed = " and ".join(f"{count} of {name}" for name, count in formats.most_common())
        reason = f"mixed, in the first {len(rows)} rows {mixed}; each row by its own"
        return Detected("chat", AUTO, fields, unread, reason, turn_keys(rows, fields), marks_in(rows, fields))
    (name,) = formats
    also = f"; {len(wrong)} of {len(rows)} rows are of no known format" if wrong else ""
    reason = f"{name}, from the fields {', '.join(fields)}{also}"
    return Detected("chat", name, fields, unread, reason, turn_keys(rows, fields), marks_in(rows, fields))


def unread_in(rows: Iterable[Row | BadRow], fields: Sequence[str], *formats: str) -> tuple[str, ...]:
    """Fields of rows of these formats that are neither in `fields`, optional fields of the format, nor marks."""
    marks = {name for row in rows if isinstance(row, Row) for name in row.value if is_mark(name, row.value[name])}
    names = dict.fromkeys(name for row in rows if isinstance(row, Row) for name in row.value)
    beside = (BESIDE if formats else set()).union(*(CHAT_FORMATS[name].beside for name in formats))
    read = {name.lower() for name in fields} | beside
    return tuple(name for name in names if name.lower() not in read and not (formats and name in marks))


def turn_keys(rows: Iterable[Row | BadRow], fields: Sequence[str]) -> tuple[str, ...]:
    """Unknown keys with values in the turns of rows; no marks of what is learnt."""
    keys = dict.fromkeys(key for turn in _turns(rows, fields) for key in turn if turn[key] not in NOTHING)
    return tuple(key for key in keys if key not in KEYS_OF_TURNS and not is_mark(key, in_turn=True))


def marks_in(rows: Iterable[Row | BadRow], fields: Sequence[str]) -> tuple[str, ...]:
    """Fields of turns and rows that say what is learnt."""
    of_turns = (key for turn in _turns(rows, fields) for key in turn if turn[key] not in NOTHING)
    of_rows = (item for row in rows if isinstance(row, Row) for item in row.value.items())
    return (
        *dict.fromkeys(f"{key} of a turn" for key in of_turns if is_mark(key, in_turn=True)),
        *dict.fromkeys(f"{key} of a row" for key, value in of_rows if key not in fields and is_mark(key, value)),
    )


def _turns(rows: Iterable[Row | BadRow], fields: Sequence[str]) -> Iterator[dict[str, Any]]:
    for row in (row for row in rows if isinstance(row, Row)):
        for field in fields:
            turns = listed(row.value.get(field))
            yield from (turn for turn in (turns if isinstance(turns, list) else ()) if isinstance(turn, dict))


FORMATS_THERE = "the formats that there are (data_prep.format):\n    " + "\n    ".join(
    f"{name:18} {known.example}" for name, known in CHAT_FORMATS.items()
)
