"""Read the rows of a shard; count and record every row that is not used.

    for row in reader:
        if not row.value["text"]:
            reader.leave_out(row, "empty text")

Each row is either kept or in rejected.jsonl: `rows` = kept + rejected. A worker reports its progress in a small file,
which works for local processes and for other machines alike.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn, Self

from nemotron_data.prep.plan import Shard
from nemotron_data.rejects import Refused, entry_of, snippet_of
from nemotron_data.sources.input_file import check_unchanged, format_of, reported
from nemotron_data.sources.opening import open_input
from nemotron_data.sources.reading import NOT_UTF_8, BadRow, Place, Range, Row, read_range
from nemotron_data.sources.text import UTF_8, encoding_of, require_text
from nemotron_shared.system.errors import UserError

NAME = "heartbeat"
SECONDS = 0.5


class Heartbeat:
    """Write the counts of a worker, at most twice a second."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._next = time.monotonic() + SECONDS

    def beat(self, counts: Mapping[str, int], read: int) -> None:
        """Report `counts`, and `read` bytes on top of their `bytes`."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + SECONDS
        self._path.write_text(json.dumps({**counts, "bytes": counts.get("bytes", 0) + read}), encoding="utf-8")

    def stop(self) -> None:
        """Remove the file from the folder before it is committed."""
        self._path.unlink(missing_ok=True)


def read_heartbeats(directory: Path) -> list[dict[str, int]]:
    """Latest counts of all workers below `directory`."""
    found = []
    for path in directory.glob(f".tmp-*/{NAME}"):
        try:
            found.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue  # being written, or its shard was committed just now
    return found


REJECTED = "rejected.jsonl"
FILES_IN = "files in "
TOLERATE = "correct the row, or count and leave out such rows: data_prep.on_bad_row=reject"


class ShardReader:
    """Iterates over the rows of a shard.

    Attributes:
        counts: rows, blank lines, and any counts of the stage's work.
        rejected: rows left out, by reason.
        cut: kept rows that lost a part, by reason.
        examples: first place of each reason.
        asked: those reasons of either kind that settings asked for.
        digests: SHA-256 by name of files for which the work knows it; the others are read again.
        inputs: for each range, in order, {"file", "lines", "rows"}; lines are those of compressed or plain JSON lines.
    """

    def __init__(
        self, shard: Shard, folder: Path, on_bad_row: Literal["error", "reject"], heartbeat: Heartbeat
    ) -> None:
        self.shard = shard
        self.counts: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.cut: Counter[str] = Counter()
        self.asked: set[str] = set()
        self.examples: dict[str, tuple[str, int]] = {}
        self.digests: dict[str, str] = {}
        self.inputs: list[dict[str, Any]] = []
        self._on_bad_row = on_bad_row
        self._heartbeat = heartbeat
        self._file = (folder / REJECTED).open("wb")

    def __iter__(self) -> Iterator[Row]:
        for part in self.shard.ranges:
            place = Place()
            if part.low == 0 and format_of(part.file.path).content != "parquet":
                encoding = encoding_of(part.file)
                self.counts[f"{FILES_IN}{encoding.upper()}"] += encoding != UTF_8
            before = self.counts["rows"]
            try:
                yield from self._rows(part, place)
            except UserError:
                check_unchanged(part.file)  # then this is why
                raise
            self.counts["blank lines"] += place.blank_lines
            self.counts["bytes"] += place.bytes
            check_unchanged(part.file)
            self.inputs.append({"file": part.file.path, "lines": place.lines, "rows": self.counts["rows"] - before})

    def _rows(self, part: Range, place: Place) -> Iterator[Row]:
        for row in read_range(part, place):
            if self.counts["rows"] == self.shard.limit:
                return
            self.counts["rows"] += 1
            if isinstance(row, BadRow):
                self.refuse(row, row.why.reason, row.why.detail, or_tolerate(row.why.finding.remedy))
            else:
                yield row
            self._heartbeat.beat(self.counts, place.bytes)

    def refuse(self, row: Row | BadRow, reason: str, detail: str = "", remedy: str = TOLERATE) -> None:
        """Leave out a bad row, or raise, depending on `data_prep.on_bad_row`. `reason` is a fixed phrase."""
        if self._on_bad_row == "reject":
            self.leave_out(row, reason, detail)
            return
        self.stop_at(row, reason, detail, remedy)

    def stop_at(self, row: Row | BadRow, reason: str, detail: str, remedy: str) -> NoReturn:
        """Raise with the place of a row, independent of `data_prep.on_bad_row`; or that its file has changed."""
        check_unchanged(next(part.file for part in self.shard.ranges if part.file.path == row.file))
        if reason == NOT_UTF_8:
            try:
                require_text(next(part.file for part in self.shard.ranges if part.file.path == row.file))
            except UserError as error:
                detail = error.message.rpartition(": ")[2]
        # workers do not know how many lines precede their bytes; for an error it is worth counting them
        before = lines_before(next(part for part in self.shard.ranges if part.file.path == row.file))
        raise row_error(row, f"{reason}: {detail}" if detail else reason, remedy, before)

    def refuse_for(self, row: Row, refused: Refused) -> None:
        """Call `refuse` for a raised `Refused`."""
        self.refuse(row, refused.reason, refused.detail, or_tolerate(refused.finding.remedy))

    def cut_off(self, row: Row, reason: str, asked: bool = False) -> None:
        """Count a row that lost a part."""
        self.examples.setdefault(reason, (row.file, row.line))
        self.cut[reason] += 1
        self.asked |= {reason} if asked else set()

    def leave_out(self, row: Row | BadRow, reason: str, detail: str = "", asked: bool = False) -> None:
        """Leave out a row that is valid but unwanted; `asked` if a setting requested it."""
        self.asked |= {reason} if asked else set()
        self._file.write(entry_of(row.file, row.line, reason, _snippet(row), detail))
        self.rejected[reason] += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def row_error(row: Row | BadRow, what: str, remedy: str | None, before: int = 0) -> UserError:
    """Error with the place of a row; `before`: number of lines in its file that its line number does not count."""
    shown = f"\n  {snippet}" if (snippet := " ".join(_snippet(row).split())) else ""
    return UserError(f"{row.file}:{before + row.line}: {what}{shown}", remedy)


def or_tolerate(remedy: str | None) -> str:
    """Remedy of a bad row, followed by the one that all bad rows have."""
    return f"{remedy}; or {TOLERATE}" if remedy else TOLERATE


def lines_before(part: Range) -> int:
    """Number of lines before a range of bytes; 0 for Parquet, whose rows are numbered within the file."""
    form = format_of(part.file.path)
    if form.content != "rows" or not part.low:
        return 0
    count = 0
    with reported(part.file.path), open_input(part.file) as file:
        left = part.low - 1
        while left and (block := file.read(min(left, 1 << 20))):
            count += block.count(b"\n")
            left -= len(block)
    return count + 1


def _snippet(row: Row | BadRow) -> str:
    if isinstance(row, BadRow):
        return row.snippet
    return snippet_of(str(row.value) if row.raw is None else row.raw.strip())
