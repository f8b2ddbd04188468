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

from nemotron_shared.errors import UserError, did_you_mean

TABLES = Path(__file__).parent / "tables"


class Node(TypedDict, total=False):
    """A place in the configuration: JSON type names it accepts ("any": all), and its keys where they are known."""

    types: list[str]
    values: list[Any]
    keys: dict[str, "Node"]


def free() -> Node:
    """A place that accepts anything."""
    return {"types": ["any"]}


@dataclass(frozen=True)
class Base:
    """A config of NeMo-RL that recipes build on. Long texts are missing in `values`."""

    algorithm: str
    digest: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Table:
    """The table of one version. `dead`: by config, the keys that it sets and that no line of the source mentions."""

    version: str
    commit: str
    package_version: str
    schemas: dict[str, Node]
    bases: dict[str, Base]
    dead: dict[str, list[str]]


@dataclass(frozen=True)
class Fault:
    """Something wrong at a dotted key."""

    key: str
    message: str
    remedy: str | None = None


@cache
def load_table(version: str) -> Table:
    """The table of a version.

    Raises:
        UserError: there is none.
    """
    file = TABLES / f"{version}.json"
    if not file.is_file():
        known = sorted(path.stem for path in TABLES.glob("*.json"))
        remedy = did_you_mean(version, known, f"there are: {', '.join(known)}")
        raise UserError(f"engine.version: no table of NeMo-RL '{version}'", remedy)
    content = json.loads(file.read_text(encoding="utf-8"))
    bases = {path: Base(**base) for path, base in content["bases"].items()}
    return Table(
        content["version"], content["commit"], content["package_version"], content["schemas"], bases, content["dead"]
    )


def base_of(table: Table, path: str) -> Base:
    """The config that a recipe builds on; raises UserError where the table has none of that path."""
    if path not in table.bases:
        known = ", ".join(table.bases)
        remedy = did_you_mean(path, table.bases, f"there are: {known}")
        raise UserError(f"engine.base: NeMo-RL {table.version} has no config '{path}' that we know", remedy)
    return table.bases[path]


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
    if "any" in accepted or type_name(value) in accepted or (type_name(value) == "int" and "float" in accepted):
        wanted = node.get("values")
        if wanted is not None and value not in wanted:
            return f"is one of {', '.join(map(str, wanted))}, not {value!r}"
        return None
    return f"must be {' or '.join(accepted)}, not {type_name(value)} ({value!r})"


def type_name(value: Any) -> str:
    """The name that nodes use for a value's type."""
    if value is None:
        return "null"
    return {bool: "bool", int: "int", float: "float", str: "str", list: "list", dict: "dict"}.get(type(value), "other")
