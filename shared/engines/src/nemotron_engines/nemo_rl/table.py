"""What NeMo-RL's configuration may hold, from the table that `generate` wrote, and what is wrong with ours.

    table = load_table("v0.7.0")
    faults(table.schemas["grpo"], {"grpo": {"num_promts_per_step": 3}})
    # [Fault(key="grpo.num_promts_per_step", message="unknown key", remedy="did you mean 'num_prompts_per_step'?")]

NeMo-RL itself accepts any unknown key, because its sections are open; a typing error there is silence.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

from nemotron_shared.errors import did_you_mean

TABLES = Path(__file__).parent / "tables"
NAMES: dict[type, str] = {
    int: "int", float: "float", bool: "bool", str: "str", type(None): "null", dict: "dict", list: "list",
}  # fmt: skip


class Node(TypedDict, total=False):
    """A place in the configuration: JSON type names it accepts ("any": all), and its keys where they are known."""

    types: list[str]
    values: list[Any]
    keys: dict[str, "Node"]


@dataclass(frozen=True)
class Base:
    """A config of NeMo-RL that recipes build on. Long texts are missing in `values`."""

    algorithm: str
    digest: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Table:
    """The table of one version."""

    commit: str
    package_version: str
    schemas: dict[str, Node]
    bases: dict[str, Base]


@dataclass(frozen=True)
class Fault:
    """Something wrong at a dotted key."""

    key: str
    message: str
    remedy: str | None = None


@cache
def load_table(version: str) -> Table:
    """The table of a version; `engine.version` names none that has no table."""
    content = json.loads((TABLES / f"{version}.json").read_text(encoding="utf-8"))
    bases = {path: Base(**base) for path, base in content["bases"].items()}
    return Table(content["commit"], content["package_version"], content["schemas"], bases)


def faults(node: Node, values: dict[str, Any], above: str = "") -> Iterator[Fault]:
    """Everything in `values` that NeMo-RL does not know, or that is of a wrong type."""
    known = node.get("keys")
    for name, value in values.items():
        key = f"{above}{name}"
        if known is None:
            return
        if name not in known:
            yield Fault(key, "NeMo-RL has no such key", did_you_mean(name, known, f"known here: {', '.join(known)}"))
            continue
        child = known[name]
        wrong = type_fault(child, value)
        if wrong:
            yield Fault(key, wrong)
        elif isinstance(value, dict):
            yield from faults(child, value, f"{key}.")


def type_fault(node: Node, value: Any) -> str | None:
    """What is wrong with the type of a value, None where nothing is."""
    accepted = node["types"]
    if isinstance(value, str) and "${" in value:
        return None  # NeMo-RL fills it in from its whole config
    if "any" in accepted or type_name(value) in accepted or (type_name(value) == "int" and "float" in accepted):
        wanted = node.get("values")
        if wanted is not None and value not in wanted:
            return f"is one of {', '.join(map(str, wanted))}, not {value!r}"
        return None
    return f"must be {' or '.join(accepted)}, not {type_name(value)} ({value!r})"


def type_name(value: Any) -> str:
    """The name that nodes use for a value's type."""
    return NAMES.get(type(value), "other")


def at(values: Any, key: str, otherwise: Any = None) -> Any:
    """The value at a dotted key."""
    for name in key.split("."):
        if not isinstance(values, dict) or name not in values:
            return otherwise
        values = values[name]
    return values


def has(values: dict[str, Any], key: str) -> bool:
    """Whether a dotted key is set, to null as well."""
    missing = object()
    return at(values, key, missing) is not missing
