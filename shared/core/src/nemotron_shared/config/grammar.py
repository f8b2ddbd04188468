"""Values as people type them, in Hydra's grammar, which takes some characters of a path for its own.

readable("run.model=~/models/mine")        # "run.model='~/models/mine'"
readable("data_prep.source=[~/a,~/b]")     # "data_prep.source=['~/a','~/b']"
readable("optimizer.lr=1e-3")              # as it is
"""

import re

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from nemotron_shared.config.overrides import Said, quoted

ANYWAY = re.compile(r"[\w./:@%+-]*", re.ASCII)
"""What the grammar takes, so that it need not be asked."""
LIST = re.compile(r"\[([^][{}()'\"]*)\]")
OF_THE_GRAMMAR = ("[", "{", "'", '"')
"""How a value begins that is written for the grammar: what is wrong in it is told."""


def readable(override: str) -> str:
    """The same override; a value that the grammar cannot read, or takes for several, is the text that it looks like."""
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
    """Whether the grammar reads one value in it."""
    try:
        return not OverridesParser.create().parse_override(override).is_sweep_override()
    except (HydraException, RecursionError):
        return False
