"""metrics.jsonl: one JSON object per line, in the order of steps.

{"step": 10, "loss": 3.91, "lr": 0.003, "tokens": 20480, "tokens_per_second": 21010.4, "seconds": 0.97}
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nemotron_shared.atomic import write_text
from nemotron_shared.errors import UserError

FILE = "metrics.jsonl"
RESULT_METRICS = {"loss": "final_loss", "valid_loss": "valid_loss", "tokens": "tokens"}
"""Metrics whose last values a manifest keeps, where the loss is what is followed, and their names there."""


class MetricsLog:
    """An append-only log that a resumed run cuts back to its checkpoint, so that no step stands in it twice."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, step: int, **values: Any) -> None:
        """Write one line at once, so that a kill loses none that came before."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")

    def cut_after(self, step: int) -> None:
        """Forget what was logged after `step`."""
        kept = [entry for entry in self.read() if entry["step"] <= step]
        write_text(self.path, "".join(json.dumps(entry) + "\n" for entry in kept))

    def forget_validation(self, step: int) -> None:
        """Forget the figures of a validation that will be done again."""
        kept = [
            entry
            for entry in self.read()
            if entry["step"] != step or not any(name.startswith("valid") for name in entry)
        ]
        write_text(self.path, "".join(json.dumps(entry) + "\n" for entry in kept))

    def read(self) -> list[dict[str, Any]]:
        """Everything logged; a last line that a kill cut short is left out."""
        return list(read_metrics(self.path))


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Entries of a metrics file.

    Raises:
        UserError: a line other than an unfinished last one is not JSON.
    """
    if not path.exists():
        return
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(keepends=True), start=1):
        if not line.endswith("\n"):
            return
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}:{number}: not valid JSON", "delete the run folder and run again") from error


def last_values(log: MetricsLog, names: Mapping[str, str]) -> dict[str, float]:
    """The last logged value of each metric, under the names that a manifest uses."""
    found: dict[str, float] = {}
    for entry in log.read():
        found |= {target: entry[name] for name, target in names.items() if name in entry}
    return found
