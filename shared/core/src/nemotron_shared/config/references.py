"""Resolve `${art:data,path}` and `${oc.env:NAME}` once, before validation.

`${art:data,FIELD}` reads the artifact that the run consumes as `data` (or `model`): FIELD is `path`, `name`,
`version`, `digest`, or a key of the artifact's metadata such as `pack_size`.
"""

import re
from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemotron_shared.errors import UserError
from nemotron_shared.redaction import keep_secret

ReadField = Callable[[str, str], Any]


def resolve(tree: DictConfig, read_field: ReadField) -> dict[str, Any]:
    """Replace every interpolation of `tree` by its value.

    Args:
        read_field: returns the value of `${art:ROLE,FIELD}`; raises UserError where there is none.
    """
    OmegaConf.register_new_resolver("art", read_field, replace=True)
    # A value of the environment may be a key: it is used, and shown nowhere.
    for name in set(re.findall(r"\$\{oc\.env:\s*(\w+)", OmegaConf.to_yaml(tree))):
        keep_secret(name)
    try:
        resolved = OmegaConf.to_container(tree, resolve=True)
    except OmegaConfBaseException as error:
        if isinstance(error.__cause__, UserError):  # from `read_field`
            raise error.__cause__ from error
        raise UserError(f"{error.full_key or 'config'}: {str(error).splitlines()[0]}") from error
    finally:
        OmegaConf.clear_resolver("art")
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def resolve_section(tree: DictConfig, name: str) -> dict[str, Any]:
    """One section by itself, before any artifact is known (the `run` section names the artifacts)."""

    def refuse(role: str, field: str) -> Any:
        raise UserError(f"{name}: ${{art:{role},{field}}} cannot be used in the section that names the artifacts")

    return resolve(OmegaConf.masked_copy(tree, [name]), refuse)[name]
