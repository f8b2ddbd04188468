"""Thin a log of up to a million entries, reading it in blocks.

Kept are the entries where a metric is lowest or highest among its neighbors, the last entries, those around a
restart, and every non-finite loss or reward. Minima, maxima, counts and last values therefore stay exact.
"""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow.json import read_json

from nemotron_shared.system.errors import UserError

BUCKETS = 1000
"""About the pixel width of the widest chart."""
LAST = 10
"""Last entries of each metric to keep, because their mean is shown."""
BLOCK = 16 << 20
Numbers = np.ndarray[Any, np.dtype[np.float64]]
Positions = np.ndarray[Any, np.dtype[np.int64]]
Piece = tuple[Numbers, Numbers, Positions]
Points = list[tuple[float, float]]


def thinned_log(path: Path, most: int) -> tuple[list[dict[str, Any]], dict[str, tuple[int, Points]]]:
    """The kept entries, and the moving means of metrics with more than `most` values.

    Raises:
        UserError: a line other than an unfinished last one is not JSON.
    """
    columns: dict[str, list[Piece]] = {}
    places: list[Positions] = []
    read = 0
    for block, starts in _blocks(path):
        for name, (steps, values, rows) in _columns(block, len(starts), path, read).items():
            columns.setdefault(name, []).append((steps, values, read + rows))
        places.append(starts)
        read += len(starts)
    keep = {0, read - 1}
    means = {}
    for name, pieces in columns.items():
        steps, values, rows = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        keep.update(rows[_telling(name, values)].tolist())
        if len(values) > most:
            means[name] = _moving_mean(steps, values)
    return _at(path, np.concatenate(places)[sorted(keep)].tolist()), means


def _blocks(path: Path) -> Iterator[tuple[bytes, Positions]]:
    """Yield blocks of whole lines, a few megabytes each, with the offset of each line in the file."""
    place, rest = 0, b""
    with path.open("rb") as file:
        while part := file.read(BLOCK):
            block, newline, rest = (rest + part).rpartition(b"\n")  # drop an incomplete last line
            ends = np.flatnonzero(np.frombuffer(block + newline, np.uint8) == ord("\n"))
            if len(ends):
                yield block + newline, place + np.concatenate([[0], ends[:-1] + 1])
            place += len(block) + len(newline)


def _columns(block: bytes, count: int, path: Path, before: int) -> dict[str, Piece]:
    """Steps, values and rows of each metric in `count` lines."""
    try:
        table = read_json(pa.BufferReader(block))
    except pa.ArrowInvalid:
        table = None
    if table is None or table.num_rows != count:  # NaN and Infinity, which only Python parses, or a damaged line
        lines = block.splitlines()
        table = pa.Table.from_pylist([_line(line, path, before + number) for number, line in enumerate(lines, 1)])
    steps = table["step"].to_numpy()
    found = {}
    for name in table.column_names:
        column = table[name]
        if name != "step" and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            rows = np.flatnonzero(column.is_valid().to_numpy())
            found[name] = (steps[rows].astype(float), column.drop_null().to_numpy().astype(float), rows)
    return found


def _line(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}:{number}: not valid JSON", "delete the run folder and run again") from error


def _at(path: Path, places: list[int]) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        rows = []
        for place in places:
            file.seek(place)
            rows.append(json.loads(file.readline()))
        return rows


def _telling(name: str, values: Numbers) -> Positions:
    """Positions of the values to keep: extremes of each bucket, the last ones, and those counted individually."""
    finite = np.isfinite(values)
    edges = np.linspace(0, len(values), min(BUCKETS, len(values)) + 1).astype(int)
    lows, highs = np.where(finite, values, np.inf), np.where(finite, values, -np.inf)
    found = [np.arange(max(0, len(values) - LAST), len(values))]
    for start, end in pairwise(edges.tolist()):
        found.append(np.array([start + lows[start:end].argmin(), start + highs[start:end].argmax()]))
    if name in {"loss", "reward"}:
        found.append(np.flatnonzero(~finite))
    if name == "seconds":  # the clock was reset by a restart
        resets = np.flatnonzero(np.diff(values) < 0)
        found += [resets, resets + 1]
    return np.concatenate(found)


def _moving_mean(steps: Numbers, values: Numbers) -> tuple[int, Points]:
    """Like `charts.moving_mean` over all values, with one point per bucket."""
    window = len(values) // 20 | 1
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    at = np.unique(np.linspace(0, len(values) - 1, BUCKETS).astype(int))
    low, high = np.maximum(at - window // 2, 0), np.minimum(at + window // 2 + 1, len(values))
    count = counts[high] - counts[low]
    means = np.where(count > 0, (sums[high] - sums[low]) / np.maximum(count, 1), np.nan)
    return window, list(zip(steps[at].tolist(), means.tolist(), strict=True))
