"""What comes out of a measurement."""

from dataclasses import dataclass, field

VERIFIED, FAILED, NEEDS_GPU = "verified", "failed", "needs_gpu"
NEEDS_ENVIRONMENT, NOT_BUILT, NOT_HERE = "needs environment", "not built", "not of this family"
EDITED, UNREADABLE = "edited", "unreadable"
"""Of a card that is no longer as a run has written it."""
STATUSES = (VERIFIED, FAILED, NEEDS_GPU, NEEDS_ENVIRONMENT, NOT_BUILT, NOT_HERE)


@dataclass(frozen=True)
class Measured:
    """Figures by name, none of which may be above the tolerance; notes say what was left out."""

    figures: dict[str, float]
    tolerance: float
    notes: list[str] = field(default_factory=list)

    @property
    def status(self) -> str:
        """A figure that is not a number is a failure, too."""
        return VERIFIED if self.figures and all(one <= self.tolerance for one in self.figures.values()) else FAILED


class CannotRun(Exception):
    """The item cannot be measured here: why, as a status and a sentence."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status = status
