"""Layouts of a recipe by number of GPUs: engine files named after the recipe's own plus that number.

config/engine/super3.yaml, super3_32gpus.yaml, super3_128gpus.yaml
layout_for(composed, 32, again)      "super3_32gpus"
"""

import math
from collections.abc import Callable

from omegaconf import DictConfig

from nemotron_shared.config.compose import Composed
from nemotron_shared.config.references import setting

GROUP = "engine"


def layout_for(composed: Composed, gpus: int, again: Callable[[str], Composed]) -> str | None:
    """The engine file for this number of GPUs, next to those the config builds on.

    Args:
        again: composes the same config with one more override.

    Returns:
        None if the config's layout already fits that number, or the file does not exist.
    """
    found = [file.with_name(f"{file.stem}_{gpus}gpus.yaml") for file in composed.files if file.parent.name == GROUP]
    layout = next((file.stem for file in reversed(found) if file.is_file()), None)
    if layout is None or _gpus_of(composed.tree) == gpus:
        return None
    return layout if _gpus_of(again(f"{GROUP}={layout}").tree) == gpus else None


def _gpus_of(tree: DictConfig) -> int | None:
    """Number of GPUs a layout is made for; None if the engine does not say."""
    if isinstance(processes := setting(tree, "engine.world_size"), int):
        return processes
    sizes = [setting(tree, f"engine.{key}") for key in ("num_nodes", "gpus_per_node")]
    return math.prod(sizes) if all(isinstance(size, int) for size in sizes) else None
