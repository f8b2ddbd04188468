"""Check keys against those that NeMo-RL's configuration has; needs NeMo-RL, so it runs when a training starts.

    faults(schema, {"grpo": {"num_promts_per_step": 3}})
    # [Fault(key="grpo.num_promts_per_step", message="NeMo-RL has no such key", remedy="did you mean ...")]

NeMo-RL itself silently accepts any unknown key, because its sections are open.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from nemotron_engines.nemo_rl.installation import Installation, ask
from nemotron_engines.nemo_rl.settings import NeMoRLEngine
from nemotron_engines.nemo_rl.versions import load_base, load_bases
from nemotron_engines.overrides import ROOT, at, has
from nemotron_shared.config.validate import refusal
from nemotron_shared.errors import did_you_mean

NAMES: dict[type, str] = {
    int: "int", float: "float", bool: "bool", str: "str", type(None): "null", dict: "dict", list: "list",
}  # fmt: skip
PASSED_ON = ("_kwargs", "mcore_generation_config")
"""Sections whose keys NeMo-RL passes to other libraries."""


class Node(TypedDict, total=False):
    """A place in the configuration: accepted JSON types ("any": all), and its keys if they are known."""

    types: list[str]
    values: list[Any]
    keys: dict[str, "Node"]


@dataclass(frozen=True)
class Fault:
    """A problem at a dotted key."""

    key: str
    message: str
    remedy: str | None = None


def require_known(
    installation: Installation, engine: NeMoRLEngine, algorithm: str, origins: Mapping[str, str], log: Path
) -> None:
    """Check `engine.overrides` against the keys and types that NeMo-RL declares, or sets in its own configs.

    Raises:
        UserError: an unknown key, or a value of the wrong type.
    """
    if not engine.overrides:
        return
    schema: Node = ask(installation, log, "--keys", algorithm)  # ty: ignore[invalid-assignment]
    checkout, words = installation.checkout, source_words(installation.checkout)
    paths = [path for path, base in load_bases(engine.version).items() if base.algorithm == algorithm]
    others = [load_base(checkout, path) for path in paths if (checkout / path).is_file()]
    for base in (installation.base, *others):
        add_read_keys(schema, base, words)
    for fault in faults(schema, engine.overrides):
        if has(installation.base, fault.key):  # nothing in NeMo-RL reads it, although its own file sets it
            if at(installation.base, fault.key) == at(engine.overrides, fault.key):
                continue
            fault = replace(fault, remedy="leave it out: NeMo-RL's own file sets it, but nothing reads it")
        message = f"{fault.message} (NeMo-RL {engine.version})"
        raise refusal(f"{ROOT}.{fault.key}", message, origins, fault.remedy)


def faults(node: Node, values: dict[str, Any], above: str = "") -> Iterator[Fault]:
    """Unknown keys in `values`, and values of the wrong type."""
    known = node.get("keys")
    for name, value in values.items():
        key = f"{above}{name}"
        if known is None:
            return
        if name not in known:
            yield Fault(key, "NeMo-RL has no such key", did_you_mean(name, known, f"known keys: {', '.join(known)}"))
        elif wrong := type_fault(known[name], value):
            yield Fault(key, wrong)
        elif isinstance(value, dict):
            yield from faults(known[name], value, f"{key}.")


def type_fault(node: Node, value: Any) -> str | None:
    """The problem with a value's type, or None."""
    accepted, name = node["types"], NAMES.get(type(value), "other")
    if isinstance(value, str) and "${" in value:
        return None  # NeMo-RL fills it in from its full config
    if "any" in accepted or name in accepted or (name == "int" and "float" in accepted):
        wanted = node.get("values")
        if wanted is not None and value not in wanted:
            return f"must be one of {', '.join(map(str, wanted))}, not {value!r}"
        return None
    return f"must be {' or '.join(accepted)}, not {name} ({value!r})"


def source_words(checkout: Path) -> set[str]:
    """Every identifier in NeMo-RL's own Python files."""
    files = [*(checkout / "nemo_rl").rglob("*.py"), *(checkout / "examples").rglob("*.py")]
    return {word for file in files for word in re.findall(r"[A-Za-z_]\w*", file.read_text(encoding="utf-8"))}


def add_read_keys(node: Node, values: dict[str, Any], words: set[str]) -> None:
    """Add keys to the schema that a config sets and the source mentions."""
    for name, value in values.items():
        known = node["keys"].get(name)
        if known is None and name in words:
            closed = isinstance(value, dict) and not name.endswith(PASSED_ON)
            known = node["keys"][name] = Node(types=["dict"], keys={}) if closed else Node(types=["any"])
        if known is not None and isinstance(value, dict) and "keys" in known:
            add_read_keys(known, value, words)
