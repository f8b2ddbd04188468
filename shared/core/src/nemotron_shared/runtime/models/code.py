"""Code that comes with a model: whether it is needed, and that nobody runs it unasked.

A model whose `model_type` the installed transformers knows needs none, whatever its `auto_map` offers. Others need
`--trust-code`, which is an option of the command line so that no file can give it.
"""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nemotron_shared.atomic import read_json
from nemotron_shared.errors import UserError

OPTION = "--trust-code"


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
    """Whether a model can only be loaded by running the Python files that come with it."""
    return bool(config.get("auto_map")) and config.get("model_type") not in known_types()


def require_loadable(label: str, config: dict[str, Any], *, trusted: bool) -> None:
    """Refuse a model that needs code which nobody has trusted, or that nothing here can load.

    Args:
        label: what the model is called in messages.

    Raises:
        UserError: with the way out.
    """
    kind, known = config.get("model_type"), known_types()
    if not known or kind in known or (kind is None and not needs_code(config)):
        return  # a config that names no type is left to whoever loads it
    if not needs_code(config):
        what = f"{label}: its model_type '{kind}' is not known to the installed transformers, and it brings no code"
        raise UserError(what, "give another model: run.model=FOLDER or run.model=hf://org/name")
    targets = config["auto_map"].values() if isinstance(config["auto_map"], dict) else [config["auto_map"]]
    elsewhere = sorted({str(target).split("--")[0] for target in targets if "--" in str(target)})
    if elsewhere:
        what = f"{label}: its code lies in another repository ({', '.join(elsewhere)}), whose revision nothing pins"
        raise UserError(
            what, "download both, put the Python files into the model's folder, and give run.model=./FOLDER"
        )
    if not trusted:
        what = f"{label}: its model_type '{kind}' needs the Python files that come with the model"
        raise UserError(what, f"read them, then add {OPTION} to the command")


def config_of(folder: Path) -> dict[str, Any]:
    """The `config.json` of a model folder; empty where there is none, or no mapping."""
    file = folder / "config.json"
    values = read_json(file) if file.is_file() else {}
    return values if isinstance(values, dict) else {}
