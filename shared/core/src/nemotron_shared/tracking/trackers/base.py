"""What every experiment tracker is: it gets the metrics of each step, a few completions in RL, and the result."""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from nemotron_shared.artifacts import Artifact
from nemotron_shared.tracking.completions import Completion

Ending = Literal["finished", "stopped", "failed"]
SMALL_FILES = ("manifest.json", "metrics.jsonl", "config.json", "results.json")
"""Files of a result to upload; its manifest has the location and digests of the others."""


class Tracker(Protocol):
    """A service opened for one run. Any method may raise anything."""

    name: str

    def figures(self, step: int, values: Mapping[str, float]) -> None:
        """Log a step's metrics."""

    def completions(self, step: int, completions: Sequence[Completion]) -> None:
        """Log a few completions of a step, before its metrics."""

    def result(self, artifact: Artifact, inputs: Sequence[Artifact]) -> None:
        """Log the result and its inputs."""

    def end(self, ending: Ending) -> None:
        """Send what is pending, and close."""
