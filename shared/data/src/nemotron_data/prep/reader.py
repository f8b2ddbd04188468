"""What a worker reads of its shard: rows, with every one that is not used counted and written down.

    for row in reader:
        if not row.value["text"]:
            reader.leave_out(row, "empty text")

Each row that was read is either kept or stands in rejected.jsonl: `rows` = kept + rejected.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NoReturn, Self

from nemotron_data.prep.heartbeat import Heartbeat
from nemotron_data.prep.plan import Shard
from nemotron_data.rejects import Refused, entry_of, snippet_of
from nemotron_data.sources.encoding import UTF_8, encoding_of, require_text
from nemotron_data.sources.files import check_unchanged, format_of, open_input
from nemotron_data.sources.reading import NOT_UTF_8, BadRow, Place, Range, Row, read_range
from nemotron_data.sources.remote import reported
from nemotron_shared.errors import UserError

REJECTED = "rejected.jsonl"
FILES_IN = "files in "
TOLERATE = "correct the row, or count and leave out such rows: data_prep.on_bad_row=reject"


class ShardReader:
    """Iterates over the rows of a shard.

    Attributes:
        counts: rows, blank lines, and what the work counts besides.
        rejected: rows left out, by reason.
        cut: rows that are kept and of which something is gone, by reason; `examples` has the first place of each.
        asked: those of both reasons that the settings asked for.
        digests: SHA-256 by name of files that the work made, where it knows them; the others are read again.
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
            yield from self._rows(part, place)
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
                self.refuse(row, row.reason, row.detail, or_tolerate(row.remedy))
            else:
                yield row
            self._heartbeat.beat(self.counts, place.bytes)

    def refuse(self, row: Row | BadRow, reason: str, detail: str = "", remedy: str = TOLERATE) -> None:
        """Leave out a bad row, or stop at it, as `data_prep.on_bad_row` says. `reason` is a fixed phrase."""
        if self._on_bad_row == "reject":
            self.leave_out(row, reason, detail)
            return
        self.stop_at(row, reason, detail, remedy)

    def stop_at(self, row: Row | BadRow, reason: str, detail: str, remedy: str) -> NoReturn:
        """End with the place of a row, whatever `data_prep.on_bad_row` says."""
        if reason == NOT_UTF_8:
            try:
                require_text(next(part.file for part in self.shard.ranges if part.file.path == row.file))
            except UserError as error:
                detail = error.message.rpartition(": ")[2]
        # workers do not know how many lines come before their bytes; here it is worth counting them
        before = lines_before(next(part for part in self.shard.ranges if part.file.path == row.file))
        raise row_error(row, f"{reason}: {detail}" if detail else reason, remedy, before)

    def refuse_for(self, row: Row, refused: Refused) -> None:
        """As `refuse`, for a row whose fault was raised."""
        self.refuse(row, refused.reason, refused.detail, or_tolerate(refused.remedy))

    def cut_off(self, row: Row, reason: str, asked: bool = False) -> None:
        """Count a row of which a part is gone."""
        self.examples.setdefault(reason, (row.file, row.line))
        self.cut[reason] += 1
        self.asked |= {reason} if asked else set()

    def leave_out(self, row: Row | BadRow, reason: str, detail: str = "", asked: bool = False) -> None:
        """Leave out a row that is not wrong but not wanted either; `asked` where a setting says so."""
        self.asked |= {reason} if asked else set()
        self._file.write(entry_of(row.file, row.line, reason, _snippet(row), detail))
        self.rejected[reason] += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def row_error(row: Row | BadRow, what: str, remedy: str | None, before: int = 0) -> UserError:
    """A row that ends the work, with its place; `before` lines of its file come before those that its line counts."""
    shown = f"\n  {snippet}" if (snippet := " ".join(_snippet(row).split())) else ""
    return UserError(f"{row.file}:{before + row.line}: {what}{shown}", remedy)


def or_tolerate(remedy: str | None) -> str:
    """A remedy of a bad row, and the one that every bad row has."""
    return f"{remedy}; or {TOLERATE}" if remedy else TOLERATE


def lines_before(part: Range) -> int:
    """Lines that begin before a range of bytes; Parquet rows are counted in their file already."""
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
