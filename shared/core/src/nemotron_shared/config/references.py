"""Resolve `${art:data,path}` and `${oc.env:NAME}` once, before validation.

`${art:data,FIELD}` reads the artifact that the run consumes as `data` (or `model`): FIELD is `path`, `name`,
`version`, `digest`, or a key of the artifact's metadata such as `pack_size`.

What references expand to is bounded: ten lines, each with four references to the line above, are a million values.
Every kind counts: `${key}`, `${oc.select:key}`, `${oc.create:...}`, and keys that are references.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

from omegaconf import DictConfig, Node, OmegaConf
from omegaconf.base import Container
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException
from omegaconf.resolvers import oc

from nemotron_shared.config.files import LARGEST, MOST_VALUES
from nemotron_shared.config.overrides import leaves
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.redaction import as_references, keep_secret

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


ReadField = Callable[[str, str], Any]


def _read_variable(name: str, *default: Any) -> Any:
    """OmegaConf's own resolver, plus redaction: an environment value may be a secret, to be used and never shown."""
    keep_secret(name)
    return oc.env(name, *default)


# replaces OmegaConf's own, so that no spelling of a reference bypasses it
OmegaConf.register_new_resolver("oc.env", _read_variable, replace=True)


@contextmanager
def computing_with(functions: Mapping[str, Callable[..., Any]]) -> Generator[None]:
    """Register functions as resolvers, as in `${mul:2,3}`, inside the block; existing resolvers are kept."""
    ours = [name for name in functions if not OmegaConf.has_resolver(name)]
    for name in ours:
        OmegaConf.register_new_resolver(name, functions[name])
    try:
        yield
    finally:
        for name in ours:
            OmegaConf.clear_resolver(name)


def resolve(tree: DictConfig, read_field: ReadField) -> dict[str, Any]:
    """Replace every interpolation of `tree` by its value.

    Args:
        read_field: returns the value of `${art:ROLE,FIELD}`, or raises UserError.
    """
    OmegaConf.register_new_resolver("art", read_field, replace=True)
    try:
        with _told():
            resolved = plain(tree)
    finally:
        OmegaConf.clear_resolver("art")
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def setting(tree: DictConfig, key: str) -> Any:
    """The value at a dotted key, before the config is validated; None if it is not set.

    Raises:
        UserError: a reference in it leads nowhere, or expands to too much.
    """
    with _told(), bounded():
        return plain(OmegaConf.select(tree, key))


def leaf_keys(tree: DictConfig) -> Iterator[str]:
    """Dotted keys of all values; see `leaves`."""
    return (key for key, _ in leaves(OmegaConf.to_container(tree, resolve=False)))


def engine_of(tree: DictConfig) -> str | None:
    """The engine's name; None if it is missing, which validation reports."""
    name = setting(tree, "engine.name")
    return name if isinstance(name, str) else None


def plain(found: Any) -> Any:
    """Plain values of a config, with references resolved.

    Raises:
        UserError: they expand to too much.
    """
    with bounded():
        return OmegaConf.to_container(found, resolve=True) if OmegaConf.is_config(found) else found


def value_at(tree: DictConfig, key: str) -> Any:
    """The value at a dotted key, with references resolved except those to environment variables."""
    with bounded():
        return as_references(plain(OmegaConf.select(tree, key, throw_on_missing=True)))


@contextmanager
def _told() -> Generator[None]:
    """Name the failing reference in the user's terms."""
    try:
        yield
    except OmegaConfBaseException as error:
        if isinstance(error.__cause__, UserError):  # from `read_field`
            raise error.__cause__ from error
        raise UserError(
            f"{error.full_key or 'config'}: {str(error).splitlines()[0][:300]}",
            "correct the reference, or what it leads to",
        ) from error


def resolve_section(tree: DictConfig, name: str) -> dict[str, Any]:
    """Resolve one section before any artifact is known (the `run` section names the artifacts)."""

    def refuse(role: str, field: str) -> Any:
        raise UserError(f"{name}: ${{art:{role},{field}}} cannot be used in the section that names the artifacts")

    return resolve(OmegaConf.masked_copy(tree, [name]), refuse)[name]
