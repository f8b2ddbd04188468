"""Sample a few rows from all over the input, to test something before processing all of it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from nemotron_data.prep.plan import Shard
from nemotron_data.sources.files import format_of
from nemotron_data.sources.reading import Row, read_range

SHARDS = 8
ROWS = 24
BYTES = 32 << 10


def sample_rows(shards: Sequence[Shard]) -> Iterator[tuple[Shard, Row]]:
    """Up to 24 rows from the start of each of up to 8 shards, evenly spread; skips bad rows."""
    count = min(SHARDS, len(shards))
    for shard in (shards[i * len(shards) // count] for i in range(count)):
        rows: list[Row] = []
        for part in shard.ranges[:ROWS]:
            if len(rows) >= ROWS:
                break
            form = format_of(part.file.path)
            if form.content == "rows" and not form.compression and part.file.rows is None:
                part = replace(part, high=min(part.high, part.low + BYTES))
            rows += [row for row in islice(read_range(part), ROWS) if isinstance(row, Row)]
        yield from ((shard, row) for row in rows[:ROWS])
