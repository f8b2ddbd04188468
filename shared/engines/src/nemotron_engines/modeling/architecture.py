"""Architectures as data: YAML files with the fields of transformers' NemotronHConfig."""

from pathlib import Path
from typing import Any

import yaml

from nemotron_shared.errors import UserError, did_you_mean

FOLDER = Path(__file__).parent / "architectures"


def own_file(name_or_path: str) -> str | None:
    """The path, where an architecture is the user's own file and not a name."""
    return name_or_path if name_or_path.endswith((".yaml", ".yml")) else None


def load_architecture(name_or_path: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """Fields of an architecture by name (`tiny`, `nano3`, `super3`) or from the user's own YAML file.

    Raises:
        UserError: there is no such architecture, or its file is not a mapping.
    """
    own = own_file(name_or_path)
    path = FOLDER / f"{name_or_path}.yaml" if own is None else Path(own)
    if not path.is_file():
        known = sorted(file.stem for file in FOLDER.glob("*.yaml"))
        remedy = did_you_mean(name_or_path, known, f"there are: {', '.join(known)}; or give the path of a YAML file")
        raise UserError(f"model.architecture: no architecture '{name_or_path}'", remedy)
    fields = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(fields, dict):
        raise UserError(f"{path}: not a mapping of NemotronHConfig fields")
    return fields | overrides
