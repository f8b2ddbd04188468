"""The rows of a data preparation: from the built-in world, or from the user's files."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from nemotron_shared.artifacts import Source
from nemotron_shared.config.schema import SourceSection
from nemotron_shared.data.rejects import Rejects
from nemotron_shared.data.sources import Row, read_rows, source_digests
from nemotron_shared.digest import json_digest
from nemotron_shared.errors import UserError

WORLD = "world"
WorldRows = Callable[[int, int], Iterable[dict[str, Any]]]


def open_rows(section: SourceSection, world: WorldRows, world_rows: int, rejects: Rejects) -> Iterator[Row]:
    """Rows in their order.

    Args:
        world: makes rows from a seed and a count, when the source is `world`.
        world_rows: how many rows the world has, unless `section.sample` asks for fewer.
    """
    if section.source == WORLD:
        made = world(section.seed, min(world_rows, section.sample or world_rows))
        return (Row(value, WORLD, number) for number, value in enumerate(made, start=1))
    refused = rejects if section.on_bad_row == "reject" else None
    return read_rows(paths(section), limit=section.sample, on_bad=section.on_bad_row, rejects=refused)


def split_key(row: dict[str, Any], section: SourceSection, otherwise: str) -> str:
    """What decides the split of a row: the configured field, a `key` that the world gives, or its own text."""
    if section.key_field is None:
        return str(row.get("key", otherwise)) if section.source == WORLD else otherwise
    if section.key_field not in row:
        raise UserError(f"no field '{section.key_field}' (data_prep.key_field)", f"fields here: {', '.join(row)}")
    return str(row[section.key_field])


def require_source(section: SourceSection) -> None:
    """Refuse a data preparation that has nothing to read.

    Raises:
        UserError: `data_prep.source` is not set.
    """
    if section.source is None:
        raise UserError("data_prep.source is not set", "give files, folders or globs; or 'world' for the built-in text")


def paths(section: SourceSection) -> list[str]:
    """Paths as a list, however they were written."""
    return [section.source] if isinstance(section.source, str) else list(section.source or [])


def describe_sources(section: SourceSection, kind: str, world_rows: int) -> list[Source]:
    """Manifest entries for what is read; raises UserError where a file is missing."""
    require_source(section)
    if section.source != WORLD:
        return [Source(**entry) for entry in source_digests(paths(section))]
    identity = {"world": kind, "seed": section.seed, "rows": world_rows}
    return [Source(f"{WORLD}:{kind}", json_digest(identity), identity)]
