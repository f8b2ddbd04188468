"""A training's log for the report: a long one thinned, so that what is shown stays what was logged.

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
"""Entries from which on a log is thinned."""
Points = list[tuple[float, float]]


class Entries(list[dict[str, Any]]):
    """The entries that are kept of a log, and the window and points of each metric's moving mean over all of them."""

    def __init__(self, kept: list[dict[str, Any]], means: dict[str, tuple[int, Points]] | None = None) -> None:
        super().__init__(kept)
        self.means = means or {}


class Drawn(list[tuple[float, float]]):
    """Points that were thinned, with the moving mean of all that there were."""

    def __init__(self, points: Points, mean: tuple[int, Points]) -> None:
        super().__init__(points)
        self.mean = mean


def read_log(path: Path) -> Entries:
    """The entries of a metrics file, thinned where there are very many.

    Raises:
        UserError: a line other than an unfinished last one is not JSON.
    """
    start = list(islice(read_metrics(path), LONG + 1))
    if len(start) <= LONG:
        return Entries(start)
    from nemotron_app.thinning import thinned_log  # here, because its libraries take long to import

    return Entries(*thinned_log(path, LONG))


def drawn(entries: Sequence[dict[str, Any]], name: str) -> Points:
    """Step and value of the entries that have a metric."""
    points = [(entry["step"], entry[name]) for entry in entries if name in entry]
    means = entries.means if isinstance(entries, Entries) else {}
    return Drawn(points, means[name]) if name in means else points
