"""Modules made in memory, for packages that only exist with a GPU."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def add_module(name: str, version: str | None = "0.0.0", **members: Any) -> ModuleType:
    """Put a module into `sys.modules` and its existing parent; keeps a module that already exists.

    It looks like a package, so `importlib.util.find_spec` finds it. `version` is its `__version__`; None for none.
    """
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__path__ = []
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    module.__dict__.update(members if version is None else members | {"__version__": version})
    sys.modules[name] = module
    parent, _, own = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], own, module)
    return module
