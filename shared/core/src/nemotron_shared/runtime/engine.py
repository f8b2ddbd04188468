"""Load the one engine a config chooses, and nothing of the others.

An engine is a module with one function, `train(task) -> Outcome` (`evaluate` in the eval stage). Each stage
lists its engines in a table from name to module: the table is the registry.
"""

import importlib
import importlib.util
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from nemotron_shared.errors import UserError, did_you_mean

OWN_PACKAGES = ("stages", "nemotron_shared", "nemotron_data", "nemotron_engines")


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


def judge(engines: Mapping[str, str], config: Any) -> None:
    """Let an engine refuse its config before any work.

    Only one whose section says `previewed` is asked: to import it costs nothing, and it starts another program.
    """
    if getattr(config.engine, "previewed", False):
        load_engine(engines, config.engine.name).check(config)


def preview(engines: Mapping[str, str], config: Any, model: str | None) -> str | None:
    """What an engine would tell the program that it starts; None for one that starts none."""
    if not getattr(config.engine, "previewed", False):
        return None
    return load_engine(engines, config.engine.name).render(config, model)


def files_of(engine: Any) -> tuple[str | None, ...]:
    """Files that an engine reads besides the artifacts, as its section names them."""
    return engine.own_files() if hasattr(engine, "own_files") else ()
