"""Load the one engine a config chooses, and nothing of the others.

An engine is a module with one function, `train(task) -> Outcome` (`evaluate` in the eval stage). Each stage
lists its engines in a table from name to module: the table is the registry.
"""

import importlib
import importlib.util
from collections.abc import Mapping
from types import ModuleType

from nemotron_shared.errors import UserError, did_you_mean

OWN_PACKAGES = ("stages", "nemotron_shared")


def load_engine(engines: Mapping[str, str], name: str) -> ModuleType:
    """Import the engine called `name`.

    Raises:
        UserError: the name is not in the table, or a package that the engine needs is not installed.
    """
    if name not in engines:
        raise UserError(f"no engine named '{name}'", did_you_mean(name, engines, f"there are: {', '.join(engines)}"))
    try:
        return importlib.import_module(engines[name])
    except ModuleNotFoundError as error:
        missing = error.name or "a package"
        if missing.split(".")[0] in OWN_PACKAGES:
            raise
        raise UserError(f"engine '{name}' needs the package '{missing}'", "see the stage's README, Engines") from error
