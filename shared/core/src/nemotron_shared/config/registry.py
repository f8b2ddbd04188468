"""Items a config chooses by name, from this repository and from installed packages.

    ENGINES = Registry("engine", "nemotron.engines.sft", {"automodel": "stages.sft.engines.automodel:Automodel"})
    ENGINES.load("automodel")

A package outside this repository adds one in its pyproject.toml:

    [project.entry-points."nemotron.engines.sft"]
    mine = "my_package.engine:MyEngine"

Names and places are strings: nothing is imported until it is chosen.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

from nemotron_shared.system.errors import UserError, did_you_mean

Item = TypeVar("Item")
MOST_SHOWN = 200


@dataclass(frozen=True)
class Registry(Generic[Item]):
    """Items by name.

    Attributes:
        kind: what an item is, for messages: "engine".
        group: entry-point group in which other packages add items.
        own: "module:NAME" of each item in this repository.
        is_one: whether an object is such an item; `what` describes one, for messages.
    """

    kind: str
    group: str
    own: Mapping[str, str]
    is_one: Callable[[Any], bool] = lambda found: True
    what: str = "such an item"

    def places(self) -> dict[str, str]:
        """ "module:NAME" of every item by name, this repository's first.

        Raises:
            UserError: a package reuses an existing name, which would make configs ambiguous.
        """
        found = dict(self.own)
        for name, place, package in installed(self.group):
            if found.get(name, place) != place:
                raise UserError(
                    f"{self.kind} '{name}' is defined twice: by {found[name]} and by the package {package} ({place})",
                    f"uninstall {package}, or give its {self.kind} another name",
                )
            found[name] = place
        return found

    def module_of(self, name: str) -> str:
        """The module that defines an item."""
        return self._place(name).partition(":")[0]

    def load(self, name: str) -> Item:
        """Import the item called `name`.

        Raises:
            UserError: no such item, a package it needs is not installed, or it is of the wrong type.
        """
        place = self._place(name)
        module, _, attribute = place.partition(":")
        remedy = f"correct it, or uninstall the package that brings {self.kind} '{name}'"
        try:
            found: Any = importlib.import_module(module)
            for part in filter(None, attribute.split(".")):
                found = getattr(found, part)
        except Exception as error:  # a plugin may raise anything
            if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
                raise UserError(f"{self.kind} '{name}': module {error.name} not found") from error
            if name in self.own or isinstance(error, UserError):
                raise
            what = f"{self.kind} '{name}': {place} cannot be loaded: {type(error).__name__}: {error}"
            raise UserError(what, remedy) from error
        if not self.is_one(found):
            raise UserError(f"{self.kind} '{name}': {place} is {shown(found)}, and must be {self.what}", remedy)
        return found

    def unknown(self, name: str) -> UserError:
        """The error for an unknown name."""
        known = list(self.places())
        there = f"there are: {', '.join(known)}; a package adds one with an entry point in the group {self.group}"
        return UserError(f"no {self.kind} named '{name}'", did_you_mean(name, known, there))

    def _place(self, name: str) -> str:
        if place := self.places().get(name):
            return place
        raise self.unknown(name)


def shown(value: object) -> str:
    """A value that a package gave, as messages have it; its own text may fail, or have no end."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"a {type(value).__name__} without a text ({type(error).__name__})"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


@cache
def installed(group: str) -> tuple[tuple[str, str, str], ...]:
    """Name, "module:NAME" and package of each entry point in a group, sorted."""
    from importlib.metadata import entry_points  # here: a tenth of start-up, for nothing in many commands

    found = {(point.name, point.value, point.dist.name if point.dist else "?") for point in entry_points(group=group)}
    return tuple(sorted(found))
