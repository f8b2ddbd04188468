"""Cut the inputs into shards. The plan depends only on the files and the shard size, never on the machine.

    corpus.jsonl, 100 MB, and two notes.txt, at 32 MiB  ->  shard 0: corpus.jsonl bytes 0..25000000
                                                            ...
                                                            shard 4: notes/a.txt, notes/b.txt

Concatenated in their order, shards are the input in its order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nemotron_data.sources.input_file import InputFile, format_of
from nemotron_data.sources.reading import Range, whole_of
from nemotron_data.sources.tables import row_groups
from nemotron_data.sources.text import is_plain_lines

EVEN = 4
"""Round shard counts above this up to a multiple of it, so that 2 or 4 workers finish together."""
EXPANSION = 4
"""Typical expansion of compressed text when read; affects only the size of shards."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Consecutive ranges of one data set, processed together, never two of the same file.

    `limit` is the maximum number of rows to read.
    """

    index: int
    part: int
    ranges: tuple[Range, ...]
    limit: int | None = None

    @property
    def bytes(self) -> int:
        """Approximate bytes to read."""
        return sum(weight(part) for part in self.ranges)


def make_shards(parts: Sequence[Sequence[InputFile]], shard_bytes: int, limit: int | None = None) -> list[Shard]:
    """Shards of several data sets, numbered consecutively; with a limit of rows, one shard for each data set."""
    shards: list[Shard] = []
    for number, files in enumerate(parts):
        pieces = (piece for file in files for piece in _pieces(file, shard_bytes if limit is None else None))
        groups = _groups(pieces, shard_bytes) if limit is None else [tuple(pieces)]
        shards += [Shard(index, number, group, limit) for index, group in enumerate(groups, start=len(shards))]
    return shards


def weight(part: Range) -> int:
    """Approximate bytes of text in a range."""
    form = format_of(part.file.path)
    if form.content == "parquet":
        groups = max(1, len(row_groups(part.file))) if part.high else 1
        return part.file.size * EXPANSION * (part.high - part.low) // groups
    return (part.high - part.low) * (EXPANSION if form.compression else 1)


def _pieces(file: InputFile, shard_bytes: int | None) -> Iterator[Range]:
    """Split a file into ranges of about `shard_bytes`; None: one range."""
    form = format_of(file.path)
    whole = whole_of(file)
    size = whole.high - whole.low
    # in other files with a known number of rows, the byte offsets of rows are unknown
    divisible = form.content == "parquet" or (form.content == "rows" and not form.compression and file.rows is None)
    count = 1
    if shard_bytes and divisible and size:
        count = -(-weight(whole) // shard_bytes)
        if count > 1 and form.content == "rows" and not is_plain_lines(file):
            count = 1
        count = min(size, -(-count // EVEN) * EVEN if count > EVEN else count)
    for i in range(count):
        yield Range(file, whole.low + size * i // count, whole.low + size * (i + 1) // count)


def _groups(pieces: Iterator[Range], shard_bytes: int) -> Iterator[tuple[Range, ...]]:
    """Group small neighbours, but never two pieces of the same file."""
    group: list[Range] = []
    filled = 0
    for piece in pieces:
        size = weight(piece)
        if group and (filled + size > shard_bytes or group[-1].file is piece.file):
            yield tuple(group)
            group, filled = [], 0
        group.append(piece)
        filled += size
    if group:
        yield tuple(group)
