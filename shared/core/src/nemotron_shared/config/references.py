"""Resolve `${art:data,path}` and `${oc.env:NAME}` once, before validation.

`${art:data,FIELD}` reads the artifact that the run consumes as `data` (or `model`): FIELD is `path`, `name`,
`version`, `digest`, or a key of the artifact's metadata such as `pack_size`.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from nemotron_shared.config.expansion import bounded
from nemotron_shared.errors import UserError
from nemotron_shared.redaction import as_references, keep_secret

ReadField = Callable[[str, str], Any]


def _read_variable(name: str, *default: Any) -> Any:
    """OmegaConf's own resolver. A value of the environment may be a key: it is used, and shown nowhere."""
    keep_secret(name)
    return oc.env(name, *default)


# in place of OmegaConf's, so that no way of writing a reference gets past
OmegaConf.register_new_resolver("oc.env", _read_variable, replace=True)


@contextmanager
def computing_with(functions: Mapping[str, Callable[..., Any]]) -> Generator[None]:
    """Let references compute with functions by name, as in `${mul:2,3}`; those that are there already stay theirs."""
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
        read_field: returns the value of `${art:ROLE,FIELD}`; raises UserError where there is none.
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
    """The value at a dotted key, for who needs it before the whole is checked; None where there is none.

    Raises:
        UserError: a reference in it leads nowhere, or to more than people write.
    """
    with _told(), bounded():
        return plain(OmegaConf.select(tree, key))


def engine_of(tree: DictConfig) -> str | None:
    """The name of the engine; None where none is written there, which the schema tells."""
    name = setting(tree, "engine.name")
    return name if isinstance(name, str) else None


def plain(found: Any) -> Any:
    """Plain values of a config, its references filled in.

    Raises:
        UserError: they stand for more than people write.
    """
    with bounded():
        return OmegaConf.to_container(found, resolve=True) if OmegaConf.is_config(found) else found


def value_at(tree: DictConfig, key: str) -> Any:
    """The value at a dotted key, its references filled in but for those to variables, which stay as they are."""
    with bounded():
        return as_references(plain(OmegaConf.select(tree, key, throw_on_missing=True)))


@contextmanager
def _told() -> Generator[None]:
    """Say in the user's terms which reference fails."""
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
    """One section by itself, before any artifact is known (the `run` section names the artifacts)."""

    def refuse(role: str, field: str) -> Any:
        raise UserError(f"{name}: ${{art:{role},{field}}} cannot be used in the section that names the artifacts")

    return resolve(OmegaConf.masked_copy(tree, [name]), refuse)[name]
