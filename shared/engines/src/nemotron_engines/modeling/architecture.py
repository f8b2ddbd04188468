"""Load the architecture in `model.architecture`: a family's, its twin's, or the user's own YAML file."""

import re
from pathlib import Path
from typing import Any

from nemotron_data.sources.datasets import own_files
from nemotron_engines.modeling.facts import DEFAULTS
from nemotron_shared.artifacts import Source
from nemotron_shared.config.files import parsed, read_text
from nemotron_shared.config.schema import EngineSection, ModelSection
from nemotron_shared.errors import UserError
from nemotron_shared.families import LIKE, architecture

LAYERS = ("hybrid_override_pattern", "mtp_hybrid_override_pattern")
SIZES = (*DEFAULTS, "vocab_size", "num_hidden_layers", "max_position_embeddings")


def own_file(name_or_path: str) -> str | None:
    """The path, if an architecture is the user's own file instead of a name."""
    return name_or_path if name_or_path.endswith((".yaml", ".yml")) else None


def own_sources(model: ModelSection, engine: EngineSection) -> list[Source]:
    """Manifest entries for the user's own files that a training or an evaluation reads besides its artifacts."""
    return own_files(own_file(model.architecture), *engine.own_files())


def load_architecture(name_or_path: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """Fields of an architecture by name (`nano3`, `super3_tiny`) or from the user's own YAML file.

    Raises:
        UserError: unknown architecture, its file is not a mapping, or a size or pattern is invalid.
    """
    if own_file(name_or_path) is None:
        return _checked(f"model.architecture={name_or_path}", architecture(name_or_path) | overrides)
    path = Path(name_or_path)
    fields = parsed(path, read_text(path))
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise UserError(f"{path}: not a mapping of NemotronHConfig fields", "write one NAME: VALUE per line")
    if LIKE in fields:
        what = f"{path}: '{LIKE}' only works in a family's architecture"
        raise UserError(what, "list all fields, or define a family: docs/families.md")
    return _checked(str(path), fields | overrides)


def _checked(place: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Check the sizes and the layer pattern, from which everything else is computed."""
    for name, value in fields.items():
        if name in LAYERS and value is not None and not (isinstance(value, str) and re.fullmatch(r"[ME*-]*", value)):
            what = f"{place}: {name} is {str(value)[:80]!r}, not a pattern of layers"
            raise UserError(what, "use M for Mamba-2, E for a mixture of experts, * for attention, - for a plain MLP")
        may_be_null = name in DEFAULTS and DEFAULTS[name] is None
        is_size = (type(value) is int and value >= 0) or (value is None and may_be_null)
        if name in SIZES and not is_size:
            raise UserError(f"{place}: {name} is {str(value)[:80]!r}, not a size", "use a whole number")
    return fields
