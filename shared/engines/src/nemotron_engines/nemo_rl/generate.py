"""Write the table of keys and types of one NeMo-RL version, from a checkout of it.

    cd NEMO_RL_CHECKOUT
    export PYTHONPATH=$PWD:REPOSITORY/shared/core/src:REPOSITORY/shared/data/src:REPOSITORY/shared/engines/src
    python -m nemotron_engines.nemo_rl.generate --checkout . --version v0.7.0

The interpreter is one in which `nemo_rl` can be imported. The table holds what `MasterConfig` of GRPO and of SFT
declares, and the values of the configs that our recipes build on, so that a recipe can be checked where NeMo-RL is
not installed. A key that a NeMo-RL config sets, but that no line of its source mentions, is listed as dead.
"""

import argparse
import importlib
import json
import re
import types
import typing
from pathlib import Path
from typing import Any, get_args, get_origin

from nemotron_engines.nemo_rl.bases import digest_of, load_base
from nemotron_engines.nemo_rl.table import NAMES, TABLES, Node
from nemotron_engines.nemo_rl.versions import VERSIONS, commit_of, version_of
from nemotron_shared.atomic import write_text

BASES = {
    "grpo": (
        "examples/configs/grpo_math_1B.yaml",
        "examples/configs/grpo_math_1B_megatron.yaml",
        "examples/nemo_gym/grpo_nanov3.yaml",
        "examples/nemo_gym/nemotron-3-super/stage1_rlvr.yaml",
        "examples/nemo_gym/nemotron-3-super/stage2_swe1.yaml",
        "examples/nemo_gym/nemotron-3-super/stage2_swe2.yaml",
        "examples/nemo_gym/nemotron-3-super/stage3_rlhf.yaml",
        "examples/configs/recipes/llm/grpo-helpsteer3-llama-3.3-nemotron-super-49b-v1.5-8n8g-fsdp2tp8cp4.yaml.disabled",
    ),
    "sft": (
        "examples/configs/sft.yaml",
        "examples/configs/recipes/llm/sft-nemotron-super-49b-8n8g-fsdp2tp4cp8-tulu-v3.yaml.disabled",
    ),
}
LONGEST_TEXT = 160
"""Longer texts of a config, such as a judge's instructions, are not kept: a run reads them from the checkout."""
PASSED_ON = ("_kwargs", "mcore_generation_config")
"""Sections whose keys NeMo-RL hands on to other libraries."""


def main() -> None:
    """Write `tables/<version>.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, required=True, help="folder of NeMo-RL's source")
    parser.add_argument("--version", choices=sorted(VERSIONS), required=True)
    parser.add_argument("--commit", help="commit of a checkout without .git")
    arguments = parser.parse_args()
    file = TABLES / f"{arguments.version}.json"
    table = make_table(arguments.checkout.resolve(), arguments.version, arguments.commit)
    write_text(file, json.dumps(table, indent=1) + "\n")
    print(f"{file}: {len(table['bases'])} configs, dead keys: {table['dead']}")


def make_table(checkout: Path, version: str, commit: str | None) -> dict[str, Any]:
    """Everything the table holds, as JSON values."""
    schemas = {name: schema_of(name) for name in BASES}
    bases, dead = {}, {}
    words = source_words(checkout)
    for algorithm, paths in BASES.items():
        for path in paths:
            if not (checkout / path).is_file():
                continue
            values = load_base(checkout, path)
            bases[path] = {"algorithm": algorithm, "digest": digest_of(values), "values": shortened(values)}
            unread = add_read_keys(schemas[algorithm], values, words)
            if unread:
                dead[path] = sorted(unread)
    return {
        "version": version,
        "source": "https://github.com/NVIDIA-NeMo/RL (Apache-2.0)",
        "commit": commit or commit_of(checkout),
        "package_version": version_of(checkout),
        "schemas": schemas,
        "dead": dead,
        "bases": bases,
    }


def schema_of(algorithm: str) -> Node:
    """The tree of keys that an algorithm's `MasterConfig` declares; generation has those of its vLLM backend too."""
    whole = node_of(importlib.import_module(f"nemo_rl.algorithms.{algorithm}").MasterConfig)
    policy = whole["keys"]["policy"]["keys"]
    vllm = node_of(importlib.import_module("nemo_rl.models.generation.vllm.config").VllmConfig)
    policy["generation"] = merged([policy["generation"], vllm])
    return whole


def node_of(kind: Any) -> Node:
    """A declared type as a node: `types` it accepts, and `keys` where it is a mapping with known keys."""
    origin = get_origin(kind)
    if origin in (typing.Annotated, typing.NotRequired, typing.Required):
        return node_of(get_args(kind)[0])
    if origin in (typing.Union, types.UnionType):
        return merged([node_of(part) for part in get_args(kind)])
    if origin is typing.Literal:
        values = list(get_args(kind))
        return {"types": sorted({NAMES[type(value)] for value in values}), "values": values}
    fields = fields_of(kind)
    if fields is not None:
        return {"types": ["dict"], "keys": {name: node_of(child) for name, child in fields.items()}}
    plain = origin or kind
    if plain in (dict, list, tuple):
        return {"types": ["dict" if plain is dict else "list"]}
    return {"types": [NAMES[plain]]} if plain in NAMES else {"types": ["any"]}


def fields_of(kind: Any) -> dict[str, Any] | None:
    """Declared keys of a TypedDict or of a pydantic model; None for any other type."""
    if hasattr(kind, "model_fields"):
        hints = typing.get_type_hints(kind, include_extras=True)
        return {name: hints[name] for name in kind.model_fields}
    if hasattr(kind, "__total__") and hasattr(kind, "__annotations__"):
        return typing.get_type_hints(kind, include_extras=True)
    return None


def merged(nodes: list[Node]) -> Node:
    """One node that accepts what any of `nodes` accepts."""
    whole: Node = {"types": sorted({name for node in nodes for name in node["types"]})}
    if all("values" in node or node["types"] == ["null"] for node in nodes):
        whole["values"] = [value for node in nodes for value in node.get("values", [None])]
    mappings = [node for node in nodes if "dict" in node["types"]]
    if mappings and all("keys" in node for node in mappings):
        names = {name: None for node in mappings for name in node["keys"]}
        whole["keys"] = {name: merged([n["keys"][name] for n in mappings if name in n["keys"]]) for name in names}
    return whole


def source_words(checkout: Path) -> set[str]:
    """Every identifier in NeMo-RL's own Python files."""
    files = [*(checkout / "nemo_rl").rglob("*.py"), *(checkout / "examples").rglob("*.py")]
    return {word for file in files for word in re.findall(r"[A-Za-z_]\w*", file.read_text(encoding="utf-8"))}


def add_read_keys(node: Node, values: dict[str, Any], words: set[str], above: str = "") -> list[str]:
    """Add to the schema what a config sets and the source mentions; returns the keys that nothing mentions."""
    dead: list[str] = []
    for name, value in values.items():
        known = node["keys"].get(name)
        if known is None and name in words:
            closed = isinstance(value, dict) and not name.endswith(PASSED_ON)
            known = node["keys"][name] = Node(types=["dict"], keys={}) if closed else Node(types=["any"])
        if known is None:
            dead.append(above + name)
        elif isinstance(value, dict) and "keys" in known:
            dead += add_read_keys(known, value, words, f"{above}{name}.")
    return dead


def shortened(value: Any) -> Any:
    """The values without long texts."""
    if isinstance(value, dict):
        return {name: shortened(child) for name, child in value.items()}
    if isinstance(value, list):
        return [shortened(child) for child in value]
    return "(a long text, in the checkout)" if isinstance(value, str) and len(value) > LONGEST_TEXT else value


if __name__ == "__main__":
    main()
