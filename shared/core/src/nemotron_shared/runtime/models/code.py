"""Code that comes with a model: whether it is needed, and that nobody runs it unasked.

A model whose `model_type` the installed transformers knows needs none, whatever its `auto_map` offers; but an
`auto_map` of one of its parts (`text_config` of a composite model) counts, for transformers decides about each part
anew. Others need `--trust-code`, which is an option of the command line so that no file can give it.
"""

import os
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nemotron_shared.atomic import read_json
from nemotron_shared.errors import UserError, printable

OPTION = "--trust-code"
IMPLEMENTATIONS = ("attn_implementation", "experts_implementation")
"""How the keys end with which a config chooses the code of its layers; ORG/NAME is fetched from the hub and run."""
MACHINERY = ("attribute_map", "sub_configs")
"""Attributes of transformers' classes: in a file, they would give other keys the meaning of those."""


@cache
def known_types() -> frozenset[str]:
    """The model types of the installed transformers, read from its tables: to import them takes ten seconds."""
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        return frozenset()
    tables = Path(spec.origin).parent / "models" / "auto"
    text = "".join(
        (tables / name).read_text(encoding="utf-8")
        for name in ("auto_mappings.py", "configuration_auto.py")
        if (tables / name).is_file()
    )
    return frozenset(re.findall(r'"([\w.-]+)"[,:]\s*"\w+Config"', text))


def needs_code(config: dict[str, Any]) -> bool:
    """Whether a model can only be loaded by running the Python files that come with it, as a whole or in a part."""
    own = config.get("auto_map") and config.get("model_type") not in known_types()
    return bool(own) or bool(_auto_maps([*config.values()]))


def all_in(tree: Any) -> Iterator[Any]:
    """Every value of a tree, at any depth."""
    left = [tree]
    while left:
        value = left.pop()
        yield value
        if isinstance(value, dict | list):
            left += value.values() if isinstance(value, dict) else value


def _auto_maps(tree: Any) -> list[Any]:
    return [value["auto_map"] for value in all_in(tree) if isinstance(value, dict) and value.get("auto_map")]


def require_loadable(label: str, config: dict[str, Any], *, trusted: bool) -> None:
    """Refuse a model that needs code which nobody has trusted, or that nothing here can load.

    Args:
        label: what the model is called in messages.

    Raises:
        UserError: with the way out.
    """
    kind, known = config.get("model_type"), known_types()
    if not known:
        return
    if not needs_code(config):
        if kind in known or kind is None:
            return  # a config that names no type is left to whoever loads it
        what = f"{label}: its model_type '{kind}' is not known to the installed transformers, and it brings no code"
        raise UserError(what, "give another model: run.model=FOLDER or run.model=hf://org/name")
    classes = [value for value in all_in(_auto_maps(config)) if isinstance(value, str)]
    elsewhere = sorted({name.split("--")[0] for name in classes if "--" in name})
    if elsewhere:
        what = f"{label}: its code lies in another repository ({', '.join(elsewhere)}), whose revision nothing pins"
        raise UserError(
            what, "download both, put the Python files into the model's folder, and give run.model=./FOLDER"
        )
    if not trusted:
        whose = "a part of it (auto_map)" if kind in known else f"its model_type '{kind}'"
        what = f"{label}: {whose} needs the Python files that come with the model"
        raise UserError(what, f"read them, then add {OPTION} to the command")


def config_of(folder: Path) -> dict[str, Any]:
    """The `config.json` of a model folder; empty where there is none.

    Raises:
        UserError: it is no regular file, no mapping, its model_type is no text, or it names code of the hub.
    """
    file = folder / "config.json"
    if not os.path.lexists(file):
        return {}
    if not file.is_file():
        raise UserError(f"{printable(str(file))}: not a regular file", "give a model in Hugging Face's layout")
    values = read_json(file)
    if not isinstance(values, dict) or not isinstance(values.get("model_type", ""), str | None):
        wrong = "its model_type is no text" if isinstance(values, dict) else "not a mapping of a model's settings"
        raise UserError(f"{printable(str(file))}: {wrong}", "give a model in Hugging Face's layout")
    for part in filter(lambda value: isinstance(value, dict), all_in(values)):
        _require_own_kernels(file, part)
    return values


def _require_own_kernels(file: Path, part: dict[str, Any]) -> None:
    """Refuse kernels of a repository: `--trust-code` is for the files of the folder, and nothing pins those."""
    for key, value in part.items():
        names = [name for name in all_in(value) if isinstance(name, str) and "/" in name]
        if key in MACHINERY or (key.endswith(IMPLEMENTATIONS) and names):
            said = f"{key} '{names[0]}' is code of another repository" if names else f"{key} is no setting of a model"
            raise UserError(f"{printable(str(file))}: {printable(said)}", f"take {printable(key)} out of the file")
