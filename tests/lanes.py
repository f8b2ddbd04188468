"""Which parameters of a test belong to the slow lane: `uv run pytest -m slow`."""

from typing import Any

import pytest


def slow(*values: Any) -> list[Any]:
    """Parameters for the slow lane, where the ordinary one has another of the same test."""
    return [pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=pytest.mark.slow) for v in values]
