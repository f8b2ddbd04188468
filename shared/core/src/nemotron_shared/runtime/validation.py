"""Validations of a run, and which of them was the best: the lowest loss, or in RL the highest reward."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from nemotron_shared.runtime.metrics import Figures, MetricsLog
from nemotron_shared.runtime.run import Run

HIGHER_IS_BETTER = {"valid_reward": True, "valid_loss": False}
"""Figures that tell one validation from another; where both are there, the reward is what is wanted."""


@dataclass(frozen=True)
class Validation:
    """One metric of one validation: `valid_loss` or `valid_reward` after a step."""

    step: int
    name: str
    value: float

    def rank(self) -> tuple[float, int]:
        """Sorts the better one first, and of equals the earlier."""
        return (-self.value if HIGHER_IS_BETTER.get(self.name) else self.value, self.step)


def validation_of(step: int, figures: Figures) -> Validation | None:
    """The validation among the metrics of a step; None where there is none, or it is not finite."""
    known: dict[str, float] = dict(figures.items())
    for name in HIGHER_IS_BETTER:
        if (value := known.get(name)) is not None and math.isfinite(value):
            return Validation(step, name, float(value))
    return None


def validations(log: MetricsLog) -> list[Validation]:
    """Every validation that a run has logged, in the order of steps."""
    found = (validation_of(entry["step"], entry) for entry in log.read())
    return [validation for validation in found if validation is not None]


def best_of(found: Iterable[Validation]) -> Validation | None:
    """The best of some validations."""
    return min(found, key=Validation.rank, default=None)


def report_best(run: Run, keep: Callable[[Validation], str]) -> dict[str, float]:
    """`best_step` and its metric for a manifest, and a word where that is not the step that is published.

    Args:
        keep: called with the best validation where the last one was worse; saves what is left of that step, because
            the checkpoints go when the result is published, and returns what to add to the line about it.
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
