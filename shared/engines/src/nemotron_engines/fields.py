"""Names that an engine's library knows, section by section, for checks where the library is not installed.

    fields/megatron_bridge.json    {"": ["train", "model", ...], "train": ["train_iters", "manual_gc", ...], ...}

`ci/fields.py ENGINE`, in the engine's environment, writes the table of the version that is pinned; a test there
compares them. A section that the table does not have may hold anything.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from nemotron_engines.overrides import ROOT
from nemotron_shared.atomic import read_json
from nemotron_shared.errors import did_you_mean
from nemotron_shared.runtime.needs import Problem


@cache
def known_fields(engine: str) -> dict[str, list[str]]:
    """Names by section, "" being the top."""
    return read_json(Path(__file__).with_name("fields") / f"{engine}.json")


def unknown_overrides(engine: str, overrides: dict[str, Any], above: str = "") -> Iterator[Problem]:
    """What `engine.overrides` names and the library does not have."""
    known = known_fields(engine).get(above)
    for name, value in overrides.items():
        key = f"{above}.{name}" if above else name
        if known is not None and name not in known:
            what = f"the library of engine '{engine}' has no {key}"
            yield Problem(what, did_you_mean(name, known, "see the library's documentation"), f"{ROOT}.{key}")
        elif isinstance(value, dict):
            yield from unknown_overrides(engine, value, key)
