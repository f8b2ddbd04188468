"""NeMo-RL's own config files, read from a checkout: the base that a recipe of ours builds on."""

import hashlib
import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nemotron_shared.errors import UserError


def load_base(checkout: Path, path: str) -> dict[str, Any]:
    """A config of the checkout with what it inherits; its interpolations are kept as they are written.

    Raises:
        UserError: the checkout has no such file.
    """
    file = checkout / path
    if not file.is_file():
        raise UserError(f"engine.base: {checkout} has no '{path}'", "choose another engine.base or engine.version")
    content = OmegaConf.to_container(_inherited(file), resolve=False)
    assert isinstance(content, dict)
    return {str(name): value for name, value in content.items()}


def digest_of(values: dict[str, Any]) -> str:
    """SHA-256 of a config, so that another checkout's file can be told from the one the table was made of."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _inherited(file: Path) -> DictConfig:
    own = OmegaConf.load(file)
    assert isinstance(own, DictConfig), f"{file} is no mapping"
    parents = own.pop("defaults", [])
    whole = OmegaConf.create({})
    parents = [parents] if isinstance(parents, str) else parents
    for above in [*(_inherited(file.parent / str(parent)) for parent in parents), own]:
        # what comes later wins; a section marked `_override_` replaces the one below instead of being merged into it
        for name in list(above):
            section = None if OmegaConf.is_missing(above, name) else above._get_node(name)
            if isinstance(section, DictConfig) and not section._is_none() and section.pop("_override_", False):
                whole.pop(name, None)
        whole.merge_with(above)
    return whole
