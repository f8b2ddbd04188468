r"""Files as text: their encoding and shape, and the documents in them.

    shape_of(file)          # "lines", "list" or "object": JSON lines, [{...}, {...}], {"data": [{...}, {...}]}
    open_text(file)         # a stream of text; UTF-8 and UTF-16 by their BOMs, others by `data_prep.encoding`
    documents_of(file, ...) # the whole file, or its parts between blank lines or headings

Bytes that are invalid in the encoding are an error with their position, because wrongly decoded text would go
unnoticed.
"""

import codecs
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import IO, Any, Literal, TextIO

from nemotron_data.formats import fast_json
from nemotron_data.sources.input_file import Documents, InputFile, format_of, reported
from nemotron_data.sources.opening import Converted, open_input
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.redaction import redact

HEAD_BYTES = 64 << 10
UTF_8 = "utf-8"
MARKS = {codecs.BOM_UTF8: UTF_8, codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
# magic bytes of files with a misleading name, and how to get at their contents
MAGIC = {
    b"PK\x03\x04": ("a zip archive", "unpack it: unzip {name}"),
    b"\x1f\x8b": ("compressed by gzip", "give it the ending .gz: mv {name} {name}.gz"),
    b"\x28\xb5\x2f\xfd": ("compressed by zstd", "give it the ending .zst: mv {name} {name}.zst"),
    b"BZh": ("compressed by bzip2", "unpack it: bunzip2 {name}"),
    b"\xfd7zXZ": ("compressed by xz", "unpack it: unxz {name}"),
    b"PAR1": ("a Parquet file", "give it that ending: mv {name} {name}.parquet"),
    b"%PDF": ("a PDF", "turn it into text: pdftotext {name}"),
    b"SQLite format 3": ("an SQLite database", "export the table as CSV"),
}
LISTS = ("data", "train", "rows", "examples", "instances", "items", "records", "samples", "dataset", "questions")
"""Keys under which a JSON object on a single line holds the rows of a file."""
OBJECT_OF_LIST = re.compile(rb'\s*\{\s*"(\w{1,40})"\s*:\s*\[\s*\{')
Shape = Literal["lines", "list", "object"]


@lru_cache(maxsize=64)
def head_of(file: InputFile) -> bytes:
    """First bytes of a file's content.

    Raises:
        UserError: they belong to a format that does not match the name, or cannot be read.
    """
    with reported(file.path), open_input(file) as content:
        head = content.read(HEAD_BYTES)
    name = redact(file.path)
    for magic, (what, remedy) in MAGIC.items():
        if head.startswith(magic):
            raise UserError(f"{name}: {what}, not {format_of(file.path).ending}", remedy.format(name=name))
    return head


def encoding_of(file: InputFile) -> str:
    """Encoding of a file: from the settings, or from its BOM.

    Raises:
        UserError: it looks like UTF-16 without a BOM, or like UTF-32.
    """
    head = head_of(file)
    if file.reading.encoding is not None:
        return file.reading.encoding
    utf_32 = head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE))
    marked = None if utf_32 else next((name for mark, name in MARKS.items() if head.startswith(mark)), None)
    if marked is not None:
        return marked
    nulls = [head[start:200:2].count(0) for start in (0, 1)]
    if utf_32 or max(nulls) > 0.4 * len(head[:100]) > 0:
        guess = "utf-32" if utf_32 or min(nulls) > 0 else "utf-16-le" if nulls[1] else "utf-16-be"
        what = f"{redact(file.path)}: holds zero bytes from its beginning: not UTF-8, perhaps {guess.upper()}"
        raise UserError(what, convert(file.path, guess))
    return UTF_8


def convert(path: str, encoding: str = "latin1") -> str:
    """Remedy for a file in another encoding than UTF-8."""
    name = redact(path)
    stem, dot, ending = name.rpartition(".")
    made = f"{stem}.utf8.{ending}" if dot else f"{name}.utf8"
    return f"convert it: iconv -f {encoding} -t utf-8 {name} > {made}; or say it: data_prep.encoding={encoding}"


def shape_of(file: InputFile) -> Shape:
    """Whether a .jsonl or .json file has one row in each line, or is one JSON value with a list of rows."""
    head = head_of(file)
    if encoding_of(file) != UTF_8:
        head = codecs.getincrementaldecoder(encoding_of(file))("replace").decode(head).encode()
    head = head.removeprefix(codecs.BOM_UTF8).lstrip()
    if head.startswith(b"["):
        return "list"
    first, _, rest = head.partition(b"\n")
    try:
        row = fast_json.loads(first)
    except json.JSONDecodeError:
        # the first line of a multi-line object ends inside it; that of a truncated row ends inside a string
        spread = first.startswith(b"{") and first.rstrip()[-1:] in (b"{", b"[", b",")
        named = OBJECT_OF_LIST.match(head) if len(head) > HEAD_BYTES // 2 and not rest else None
        return "object" if spread or (named and named[1].decode() in LISTS) else "lines"
    alone = isinstance(row, dict) and not rest.strip() and [key for key in row if is_rows(row[key])]
    return "object" if alone and len(alone) == 1 and alone[0] in LISTS else "lines"


def is_rows(value: Any) -> bool:
    """Whether a JSON value is a list of objects."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def is_plain_lines(file: InputFile) -> bool:
    """Whether a file of rows can be read from any byte offset: JSON lines in UTF-8."""
    return encoding_of(file) == UTF_8 and shape_of(file) == "lines"


class _Recoded(Converted):
    """A file's content in UTF-8."""

    def __init__(self, source: IO[bytes], encoding: str, path: str) -> None:
        super().__init__(source)
        self._encoding, self._path = encoding, path
        self._decoder = codecs.getincrementaldecoder("utf-8-sig" if encoding == UTF_8 else encoding)()
        self._read = 0
        self._ended = False

    def _next(self) -> bytes | None:
        if self._ended:
            return None
        data = self._source.read(1 << 20)
        self._ended = not data
        try:
            text = self._decoder.decode(data, final=self._ended)
        except UnicodeDecodeError as error:
            at = self._read + len(data) - len(error.object) + error.start
            byte = error.object[error.start]
            what = f"{redact(self._path)}: not {self._encoding.upper()}: byte {at:,} of it is 0x{byte:02x}"
            raise UserError(what, convert(self._path)) from error
        self._read += len(data)
        return text.encode("utf-8", "surrogatepass")


def open_utf8(file: InputFile) -> io.BufferedReader:
    """Open a file as UTF-8, without a BOM; reading raises `UserError` for invalid bytes."""
    return io.BufferedReader(_Recoded(open_input(file), encoding_of(file), file.path), 1 << 20)


def require_text(file: InputFile) -> None:
    """Raise `UserError` with the position of the first invalid byte, if there is one."""
    with open_utf8(file) as content:
        while content.read(1 << 20):
            pass


def open_text(file: InputFile) -> TextIO:
    """Open a file as text, keeping line ends."""
    return io.TextIOWrapper(open_utf8(file), encoding=UTF_8, newline="")


def lines_up_to(longest: int, content: TextIO) -> Iterator[str]:
    """Yield each line with its newline; lines of more than `longest` characters are truncated one character beyond."""
    while line := content.readline(longest + 1):
        yield line
        while len(line) > longest and not line.endswith("\n"):
            line = content.readline(longest + 1)


MANY = 20
"""With this many text files or more, each is one document."""
HEADING = re.compile(r"#{1,2}[ \t]+\S")
FENCE = re.compile(r"\s*(```|~~~)")
TWO_BLANK_LINES = re.compile(r"\n[ \t\r]*\n[ \t\r]*\n")
BLANK_LINE = re.compile(r"\n[ \t\r]*\n")


def with_choice(files: Sequence[InputFile]) -> list[InputFile]:
    """Resolve `auto`: set for each text file of a data set what one document is."""
    texts = sum(format_of(file.path).content == "text" for file in files)
    return [
        replace(file, reading=replace(file.reading, documents=choice(file, texts)))
        if file.reading.documents == "auto" and format_of(file.path).content == "text"
        else file
        for file in files
    ]


def about_documents(files: Sequence[InputFile]) -> str | None:
    """One line for people about what one document of the text files is; None without text files."""
    chosen = Counter(file.reading.documents for file in files if format_of(file.path).content == "text")
    if not chosen:
        return None
    words = {"whole": "whole", "blank_lines": "cut at blank lines", "headings": "cut at headings"}
    kinds = ", ".join(f"{count:,} {words[how]}" for how, count in chosen.most_common())
    return f"documents of text files: {kinds} (data_prep.documents)"


def choice(file: InputFile, texts: int) -> Documents:
    """Meaning of `auto` for one of `texts` text files: with few files, each contains many documents."""
    if texts >= MANY:
        return "whole"
    text = head_of(file).decode(encoding_of(file), "replace")
    if ".md" in format_of(file.path).ending and sum(1 for line in text.splitlines() if HEADING.match(line)) > 1:
        return "headings"
    return "blank_lines" if BLANK_LINE.search(text.strip()) else "whole"


def documents_of(file: InputFile, content: TextIO, longest: int) -> Iterator[tuple[int, str]]:
    """Yield first line number and text of each document that is not only white space.

    Documents longer than `longest` characters are truncated just beyond it, so that callers can tell.
    """
    how = file.reading.documents
    if how == "whole":
        yield 1, content.read(longest + 1)
        return
    text = head_of(file).decode(encoding_of(file), "replace")
    # chapters are further apart than paragraphs
    gap = 2 if len(TWO_BLANK_LINES.findall(text)) > 1 else 1
    lines: list[str] = []
    begun, blank, held, fenced, body = 1, 0, 0, False, False
    for number, line in enumerate(lines_up_to(longest, content), start=1):
        fenced ^= bool(FENCE.match(line))
        heading = how == "headings" and not fenced and bool(HEADING.match(line))
        if lines and ((heading and body) or (how == "blank_lines" and blank >= gap and line.strip())):
            yield begun, "".join(lines).strip("\r\n")
            lines, held, body = [], 0, False
        blank = 0 if line.strip() else blank + 1
        if lines or line.strip():
            begun = begun if lines else number
            lines.extend([line] if held <= longest else [])
            held += len(line)
            body |= not heading and bool(line.strip())
    if lines:
        yield begun, "".join(lines).strip("\r\n")
