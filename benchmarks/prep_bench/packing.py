"""Packing alone: 200,000 lognormal lengths into bins of 4,096 tokens, us against TRL and a first fit that scans."""

import gc
import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from prep_bench.contest import Missing, Score
from prep_bench.settings import Bench
from prep_bench.table import Section

COUNT, PACK_SIZE = 200_000, 4096
SCAN_COUNTS = (12_500, 25_000)
REHEARSED = 100
"""Factor by which a rehearsal is smaller."""
Bins = Any
"""Sequence of bins, each with indices of sequences."""


def run(bench: Bench) -> list[Section]:
    fewer = REHEARSED if bench.rehearsal else 1
    count = COUNT // fewer
    lengths = make_lengths(count)
    ids = _ids(lengths, one_byte=True)
    ways: list[tuple[str, Callable[[], Any]]] = [("ours, bins only", lambda: _ours(lengths))]
    rows: list[Score | Missing] = []
    if importlib.util.find_spec("trl"):
        ways.append(("TRL pack_dataset bfd, ids of no size", _trl(_ids(lengths, one_byte=False))))
        ways.append(("TRL pack_dataset bfd, ids of one byte", _trl(ids)))
    else:
        rows.append(Missing("TRL pack_dataset bfd", "not installed: trl"))
    ways.append(("ours, and ids of one byte put together", lambda: _gathered(ids, _ours(lengths))))
    whole = Section(f"packing, {count:,} lengths at {PACK_SIZE}", [*_time(ways, bench.rounds, lengths), *rows])
    floor = -(-int(lengths.sum()) // PACK_SIZE)
    whole.notes.append(f"no packing can need fewer than {floor:,} bins")
    whole.notes.append("TRL always puts the ids together; ids of no size (nulls) cost next to nothing to copy")
    return [whole, *(_scan(bench, some // fewer) for some in SCAN_COUNTS)]


def _scan(bench: Bench, count: int) -> Section:
    lengths = make_lengths(count)
    ways = [("ours, best_fit_decreasing", lambda: _ours(lengths)), ("first fit, scanning", lambda: scanned(lengths))]
    return Section(f"packing, {count:,} lengths at {PACK_SIZE}", [*_time(ways, bench.rounds, lengths)])


def make_lengths(count: int) -> np.ndarray:
    """Lengths in tokens, median 600, cut at the pack size."""
    drawn = np.exp(np.random.default_rng(7).normal(np.log(600), 1.1, count))
    return np.clip(drawn.astype(np.int64), 16, PACK_SIZE)


def _ours(lengths: np.ndarray) -> Bins:
    from nemotron_data.packing import pack

    return pack(lengths, PACK_SIZE, "best_fit_decreasing", 0)  # order and bounds


def scanned(lengths: np.ndarray) -> Bins:
    """Put each sequence, longest first, into the first bin with room."""
    order = np.argsort(-lengths, kind="stable")
    bins: list[list[int]] = []
    space: list[int] = []
    for index, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        for number, room in enumerate(space):
            if length <= room:
                bins[number].append(index)
                space[number] -= length
                break
        else:
            bins.append([index])
            space.append(PACK_SIZE - length)
    return bins


def _ids(lengths: np.ndarray, one_byte: bool) -> Any:
    """Token ids of all sequences as an Arrow list: zeros of one byte, or nulls, which take no memory."""
    import pyarrow as pa

    offsets = np.concatenate([[0], np.cumsum(lengths)])
    size = int(offsets[-1])
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(np.zeros(size, np.uint8)) if one_byte else pa.nulls(size)
    )


def _gathered(ids: Any, bins: Bins) -> Any:
    """Ids of each bin as one list, for `figures`."""
    import pyarrow as pa

    rows = ids.take(pa.array(bins.order))
    return pa.ListArray.from_arrays(pa.array(rows.offsets.to_numpy()[bins.bounds]), rows.values)


def _trl(ids: Any) -> Callable[[], Any]:
    import datasets
    import pyarrow as pa
    from trl import pack_dataset

    datasets.disable_caching()
    datasets.disable_progress_bars()
    rows = datasets.Dataset(pa.table({"input_ids": ids}))
    options = {"batch_size": None}  # all rows at once, as we do; by default it packs 1,000 at a time
    return lambda: pack_dataset(rows, PACK_SIZE, strategy="bfd", map_kwargs=options)


def _time(ways: list[tuple[str, Callable[[], Any]]], rounds: int, lengths: np.ndarray) -> list[Score]:
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name, _ in ways}
    found = {name: figures(way(), lengths) for name, way in ways}  # imports and first allocations happen here
    for _ in range(rounds):
        for name, way in ways:
            gc.collect()
            wall, cpu = time.perf_counter(), time.process_time()
            way()
            seconds[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    scores = []
    for name, times in seconds.items():
        wall_s, cpu_s = (statistics.median(column) for column in zip(*times, strict=True))
        walls = [wall for wall, _ in times]
        scores.append(
            Score(name, rounds, wall_s, cpu_s, None, None, None, found[name], "ours" not in name, walls)
        )  # fmt: skip
    return scores


def figures(result: Any, lengths: np.ndarray) -> str:
    """Number of bins and how full they are; raises `ValueError` if a sequence is lost, duplicated, or does not fit."""
    if hasattr(result, "lists"):  # ours
        result = result.lists()
    if isinstance(result, list):
        if sorted(index for indices in result for index in indices) != list(range(len(lengths))):
            raise ValueError("not every sequence is in one bin")
        sizes = np.array([lengths[indices].sum() for indices in result])
    elif hasattr(result, "column_names"):
        sizes = np.array([len(row) for row in result.with_format("arrow")["input_ids"]])
    else:
        sizes = result.value_lengths().to_numpy()
    if sizes.max() > PACK_SIZE or sizes.sum() != lengths.sum():
        raise ValueError("a bin is too large, or tokens are lost")
    return f"{len(sizes):,} bins, {sizes.sum() / (len(sizes) * PACK_SIZE):.3%} full"
