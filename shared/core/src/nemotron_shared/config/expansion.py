"""Bound how much references may expand to while OmegaConf resolves them.

Ten lines, each with four references to the line above, expand to a million values. Every kind of reference counts:
`${key}`, `${oc.select:key}`, `${oc.create:...}`, and keys that are references.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

from omegaconf import Node, OmegaConf
from omegaconf.base import Container
from omegaconf.errors import InterpolationResolutionError

from nemotron_shared.config.files import LARGEST, MOST_VALUES
from nemotron_shared.errors import UserError

Way = TypeVar("Way", bound=Callable[..., Any])


@dataclass
class _Spent:
    """What references have expanded to so far."""

    values: int = 0
    characters: int = 0

    @property
    def too_much(self) -> bool:
        return self.values > MOST_VALUES or self.characters > LARGEST

    def add(self, found: Any) -> None:
        """Count one reference's value; a section counts with everything in it."""
        if OmegaConf.is_config(found):
            found = OmegaConf.to_container(found, resolve=False)
        rest = [found._value() if isinstance(found, Node) else found]
        while rest and not self.too_much:
            one = rest.pop()
            self.values += 1
            self.characters += len(one) if isinstance(one, str | bytes) else 0
            rest += [*one, *one.values()] if isinstance(one, dict) else one if isinstance(one, list | tuple) else ()


_spent: ContextVar[_Spent | None] = ContextVar("spent", default=None)


@contextmanager
def _counted() -> Generator[_Spent]:
    """The current count; the outermost call starts a new one."""
    spent = _spent.get() or _Spent()
    token = _spent.set(spent)
    try:
        yield spent
    finally:
        _spent.reset(token)


@contextmanager
def bounded() -> Generator[None]:
    """Resolve references inside the block under one common bound.

    Raises:
        UserError: they expand to more than a hand-written config would.
    """
    key = ""
    with _counted() as spent:
        try:
            yield
        except Exception as error:  # the caller, such as Hydra, may have wrapped our error
            if not spent.too_much or isinstance(error, UserError):
                raise
            key = getattr(error, "full_key", "")
    if spent.too_much:  # check again: `oc.select` swallows the error and returns its default
        what = f"with its references more than {MOST_VALUES:,} values, or {LARGEST:,} characters"
        remedy = "references to references multiply: refer to fewer of them, or write the value itself"
        raise UserError(f"{key or 'config'}: {what}", remedy)


def _counting(fill_in: Way) -> Way:
    @wraps(fill_in)
    def counted(*args: Any, **kwargs: Any) -> Any:
        with _counted() as spent:
            found = None if spent.too_much else fill_in(*args, **kwargs)
            spent.add(found)
            if spent.too_much:
                raise InterpolationResolutionError("its references stand for more than people write")
            return found

    return cast(Way, counted)


# the two methods through which OmegaConf resolves any reference, alone or within a text
Container._resolve_node_interpolation = _counting(Container._resolve_node_interpolation)
Container._evaluate_custom_resolver = _counting(Container._evaluate_custom_resolver)
