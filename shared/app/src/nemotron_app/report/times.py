"""Durations of steps, from their manifests, so that a pipeline and a later report agree."""

from collections.abc import Iterable
from datetime import datetime

from nemotron_shared.artifacts import Artifact


def seconds_of(artifact: Artifact) -> float | None:
    """Seconds of the last attempt, from its start until publication; None if unknown.

    Manifests of earlier versions only have both timestamps, in whole seconds.
    """
    made = artifact.manifest
    last = made.segments[-1] if made.segments else {}
    if isinstance(measured := last.get("seconds"), int | float):
        return float(measured)
    try:
        began, ended = (datetime.fromisoformat(moment) for moment in (last["began"], made.created_at))
    except (KeyError, TypeError, ValueError):
        return None
    seconds = (ended - began).total_seconds()
    return seconds if seconds > 0 else None


def total(artifacts: Iterable[Artifact]) -> float | None:
    """Sum over all steps; None if any is unknown."""
    known = [seconds_of(artifact) for artifact in artifacts]
    return sum(filter(None, known)) if known and None not in known else None
