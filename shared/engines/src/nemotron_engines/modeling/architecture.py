"""The architecture that `model.architecture` names: a family's, its twin's, or the user's own YAML file."""

from pathlib import Path
from typing import Any

from nemotron_shared.config.files import parsed, read_text
from nemotron_shared.errors import UserError
from nemotron_shared.families import architecture


def own_file(name_or_path: str) -> str | None:
    """The path, where an architecture is the user's own file and not a name."""
    return name_or_path if name_or_path.endswith((".yaml", ".yml")) else None


def load_architecture(name_or_path: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """Fields of an architecture by name (`nano3`, `super3_tiny`) or from the user's own YAML file.

    Raises:
        UserError: there is no such architecture, or its file is not a mapping.
    """
    if own_file(name_or_path) is None:
        return architecture(name_or_path) | overrides
    path = Path(name_or_path)
    fields = parsed(path, read_text(path))
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise UserError(f"{path}: not a mapping of NemotronHConfig fields", "write NAME: VALUE, one on each line")
    return fields | overrides
