"""Bridge's own checks of a whole configuration, on a copy, and their faults as messages for people."""

import copy
import os
from typing import Any
from unittest.mock import patch

from nemotron_shared.errors import UserError


def check(container: Any, world_size: int) -> Any:
    """Let Bridge resolve and check a copy of the configuration for `world_size` processes; returns that copy.

    Raises:
        UserError: what Bridge refuses, in its words.
    """
    from megatron.bridge.training.config import runtime_config_update  # ty: ignore[import-not-found]

    resolved = copy.deepcopy(container)
    resolved.env_vars = {}  # they would be set in this process
    try:
        with patch.dict(os.environ, {"WORLD_SIZE": str(world_size), "RANK": os.environ.get("RANK", "0")}):
            runtime_config_update(resolved)
    except (AssertionError, ValueError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        remedy = "change the engine section, or engine.overrides"
        raise UserError(f"Megatron-Bridge refuses the configuration: {message}", remedy) from error
    return resolved
