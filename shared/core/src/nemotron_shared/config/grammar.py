"""Quote values for Hydra's grammar, which reserves some characters that occur in paths.

readable("run.model=~/models/mine")        # "run.model='~/models/mine'"
readable("data_prep.source=[~/a,~/b]")     # "data_prep.source=['~/a','~/b']"
readable("optimizer.lr=1e-3")              # unchanged
"""

import re

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from nemotron_shared.config.overrides import Said, quoted

ANYWAY = re.compile(r"[\w./:@%+-]*", re.ASCII)
"""Values the grammar always accepts, so we need not try."""
LIST = re.compile(r"\[([^][{}()'\"]*)\]")
OF_THE_GRAMMAR = ("[", "{", "'", '"')
"""Prefixes of values written in the grammar: their errors are reported, not quoted away."""


def readable(override: str) -> str:
    """The same override, quoting its value if the grammar cannot parse it or would read several values."""
    left, equals, value = override.partition("=")
    if not equals or ANYWAY.fullmatch(value) or _is_read(override):
        return override
    if several := LIST.fullmatch(value.strip()):
        parts = (part.strip() for part in several[1].split(","))
        value = f"[{','.join(part if _is_read(f'{left}={part}') else quoted(part) for part in parts)}]"
    elif value.startswith(OF_THE_GRAMMAR):
        return override
    else:
        value = quoted(value)
    text = f"{left}={value}"
    return Said(text, override.origin) if isinstance(override, Said) else text


def _is_read(override: str) -> bool:
    """Whether the grammar reads a single value in it."""
    try:
        return not OverridesParser.create().parse_override(override).is_sweep_override()
    except (HydraException, RecursionError):
        return False
