"""Find the best validation of a run: the lowest loss, or in RL the highest reward."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from nemotron_shared.runtime.metrics import Figures, MetricsLog
from nemotron_shared.runtime.run import Run

HIGHER_IS_BETTER = {"valid_reward": True, "valid_loss": False}
"""Metrics that rank validations; if both are present, the reward decides."""


@dataclass(frozen=True)
class Validation:
    """One metric of a validation: `valid_loss` or `valid_reward` after a step."""

    step: int
    name: str
    value: float

    def rank(self) -> tuple[float, int]:
        """Sort key: better values first, then earlier steps."""
        return (-self.value if HIGHER_IS_BETTER.get(self.name) else self.value, self.step)


def validation_of(step: int, figures: Figures) -> Validation | None:
    """The validation in a step's metrics; None if it has none, or it is not finite."""
    known: dict[str, float] = dict(figures.items())
    for name in HIGHER_IS_BETTER:
        if (value := known.get(name)) is not None and math.isfinite(value):
            return Validation(step, name, float(value))
    return None


def validations(log: MetricsLog) -> list[Validation]:
    """All logged validations of a run, in order of steps."""
    found = (validation_of(entry["step"], entry) for entry in log.read())
    return [validation for validation in found if validation is not None]


def best_of(found: Iterable[Validation]) -> Validation | None:
    """The best of several validations."""
    return min(found, key=Validation.rank, default=None)


def report_best(run: Run, keep: Callable[[Validation], str]) -> dict[str, float]:
    """`best_step` and its metric for a manifest, and a line if it is not the published step.

    Args:
        keep: called with the best validation if the last one is worse; saves that step's checkpoint, because
            checkpoints are deleted on publishing, and returns text to append to the line.
    """
    found = validations(run.metrics)
    best = best_of(found)
    if best is None:
        return {}
    last = found[-1]
    if best.rank()[0] < last.rank()[0]:
        run.say(
            f"published is the last step; step {best.step} validated better: {best.name} {best.value:.4g}, "
            f"at the end {last.value:.4g}{keep(best)}"
        )
    return {"best_step": best.step, f"best_{best.name}": best.value}
