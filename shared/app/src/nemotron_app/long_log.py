"""Load a training log for the report. Long logs are thinned without distorting the figures shown.

entries = read_log(artifact.path / "metrics.jsonl")
entries[-1]["loss"]         # exact, as in the file
entries.means["loss"]       # of a long log: the moving mean over all of its values
"""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from nemotron_shared.runtime.metrics import read_metrics

LONG = 4_000
"""Logs with at least this many entries are thinned."""
Points = list[tuple[float, float]]


class Entries(list[dict[str, Any]]):
    """The kept entries of a log, and for each metric the window and points of its moving mean over all entries."""

    def __init__(self, kept: list[dict[str, Any]], means: dict[str, tuple[int, Points]] | None = None) -> None:
        super().__init__(kept)
        self.means = means or {}


class Drawn(list[tuple[float, float]]):
    """Thinned points, with the moving mean of all original points."""

    def __init__(self, points: Points, mean: tuple[int, Points]) -> None:
        super().__init__(points)
        self.mean = mean


def read_log(path: Path) -> Entries:
    """The entries of a metrics file, thinned if there are very many.

    Raises:
        UserError: a line other than an unfinished last one is not JSON.
    """
    start = list(islice(read_metrics(path), LONG + 1))
    if len(start) <= LONG:
        return Entries(start)
    from nemotron_app.thinning import thinned_log  # imported here because its libraries load slowly

    return Entries(*thinned_log(path, LONG))


def drawn(entries: Sequence[dict[str, Any]], name: str) -> Points:
    """Step and value of each entry that has the metric."""
    points = [(entry["step"], entry[name]) for entry in entries if name in entry]
    means = entries.means if isinstance(entries, Entries) else {}
    return Drawn(points, means[name]) if name in means else points
