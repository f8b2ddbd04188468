"""Check a NeMo-RL config without a GPU. Run by NeMo-RL's own interpreter, never imported by ours.

    python preflight.py --gpus                                     {"gpus": 8, "where": "this machine"}
    python preflight.py --keys grpo                                {"types": ["dict"], "keys": {"policy": {...}, ...}}
    python preflight.py --config nemo_rl.yaml --algorithm grpo     {"train_rows": 98, "longest": 21, ...}

The last line of stdout is the answer as JSON. It only uses packages of NeMo-RL's environment.
"""

import argparse
import importlib.util
import json
import os
import sys
import types
import typing
from pathlib import Path
from typing import Any, get_args, get_origin

NAMES: dict[Any, str] = {
    int: "int", float: "float", bool: "bool", str: "str", type(None): "null", dict: "dict", list: "list",
}  # fmt: skip
LOOKED_AT = 256
"""Rows that go through the processor; the others are only counted."""


def main() -> None:
    """Answer one query."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", action="store_true")
    parser.add_argument("--keys", choices=["grpo", "sft"])
    parser.add_argument("--config", type=Path)
    parser.add_argument("--algorithm", choices=["grpo", "sft"])
    parser.add_argument("--script", type=Path)
    arguments = parser.parse_args()
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]
    if arguments.gpus:
        answer = count_gpus()
    elif arguments.keys:
        answer = declared_keys(arguments.keys)
    else:
        answer = preflight(arguments.config, arguments.algorithm, arguments.script)
    print(json.dumps(answer))


def count_gpus() -> dict[str, Any]:
    """GPUs of the Ray cluster that a driver here would join, else of this machine."""
    if os.environ.get("RAY_ADDRESS") or Path("/tmp/ray/ray_current_cluster").is_file():
        import ray

        try:
            ray.init(address="auto", log_to_driver=False)
            return {"gpus": int(ray.cluster_resources().get("GPU", 0)), "where": "the Ray cluster"}
        except ConnectionError:
            pass  # the address of a dead cluster; the driver then starts its own
    import torch

    return {"gpus": torch.cuda.device_count(), "where": "this machine"}


def declared_keys(algorithm: str) -> dict[str, Any]:
    """The tree of keys that an algorithm's `MasterConfig` declares; generation has those of its vLLM backend too."""
    whole = node_of(importlib.import_module(f"nemo_rl.algorithms.{algorithm}").MasterConfig)
    policy = whole["keys"]["policy"]["keys"]
    vllm = node_of(importlib.import_module("nemo_rl.models.generation.vllm.config").VllmConfig)
    policy["generation"] = merged([policy["generation"], vllm])
    return whole


def node_of(kind: Any) -> dict[str, Any]:
    """Convert a declared type to a node: accepted `types`, and `keys` if it is a mapping with known keys."""
    origin = get_origin(kind)
    if origin in (typing.Annotated, typing.NotRequired, typing.Required):
        return node_of(get_args(kind)[0])
    if origin in (typing.Union, types.UnionType):
        return merged([node_of(part) for part in get_args(kind)])
    if origin is typing.Literal:
        values = list(get_args(kind))
        return {"types": sorted({NAMES[type(value)] for value in values}), "values": values}
    hints = {}
    if hasattr(kind, "model_fields") or (hasattr(kind, "__total__") and hasattr(kind, "__annotations__")):
        hints = typing.get_type_hints(kind, include_extras=True)  # of a pydantic model, or a TypedDict
    if hints:
        names = getattr(kind, "model_fields", hints)
        return {"types": ["dict"], "keys": {name: node_of(hints[name]) for name in names}}
    plain = list if origin is tuple or kind is tuple else origin or kind
    return {"types": [NAMES.get(plain, "any")]}


def merged(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """Union of nodes."""
    whole: dict[str, Any] = {"types": sorted({name for node in nodes for name in node["types"]})}
    if all("values" in node or node["types"] == ["null"] for node in nodes):
        whole["values"] = [value for node in nodes for value in node.get("values", [None])]
    mappings = [node for node in nodes if "dict" in node["types"]]
    if mappings and all("keys" in node for node in mappings):
        names = {name: None for node in mappings for name in node["keys"]}
        whole["keys"] = {name: merged([n["keys"][name] for n in mappings if name in n["keys"]]) for name in names}
    return whole


def preflight(file: Path, algorithm: str, script: Path) -> dict[str, Any]:
    """Load config, tokenizer and data as the driver would."""
    import yaml
    from nemo_rl.algorithms.utils import get_tokenizer  # ty: ignore[import-not-found]

    checked, config = accepted(yaml.safe_load(file.read_text(encoding="utf-8")), algorithm)
    tokenizer = get_tokenizer(config["policy"]["tokenizer"])
    if algorithm == "grpo":
        from nemo_rl.models.generation import configure_generation_config  # ty: ignore[import-not-found]

        configure_generation_config(config["policy"]["generation"], tokenizer)
    train, valid = data_sets(config, algorithm, script, tokenizer)
    looked_at = [train[index] for index in range(min(len(train), LOOKED_AT))]
    lengths = [sum(len(message["token_ids"]) for message in row["message_log"]) for row in looked_at]
    return {
        "checked": checked,
        "train_rows": len(train),
        "valid_rows": 0 if valid is None else len(valid),
        "looked_at": len(looked_at),
        "longest": max(lengths),
    }


def accepted(values: dict[str, Any], algorithm: str) -> tuple[bool, dict[str, Any]]:
    """Validate the config with NeMo-RL's MasterConfig; returns whether it was checked, and the config. Older versions
    only have type hints and check nothing."""
    kind = importlib.import_module(f"nemo_rl.algorithms.{algorithm}").MasterConfig
    if not hasattr(kind, "model_validate"):
        return False, values
    checked = kind(**values)
    return True, {**values, **{name: getattr(checked, name) for name in ("policy", "data")}}


def data_sets(config: dict[str, Any], algorithm: str, script: Path, tokenizer: Any) -> tuple[Any, Any]:
    """Training and validation set, built by the same functions as in the driver."""
    if algorithm == "sft":
        return program(script).setup_data(tokenizer, config["data"])
    if "train_jsonl_fpath" in config["data"]:
        read = program(script).setup_single_nemo_gym_dataset
        train, valid = (config["data"][f"{split}_jsonl_fpath"] for split in ("train", "validation"))
        return read(train, tokenizer), None if valid is None else read(valid, tokenizer)
    from nemo_rl.data.utils import setup_response_data  # ty: ignore[import-not-found]

    return setup_response_data(tokenizer, config["data"], env_configs=None)


def program(script: Path) -> Any:
    """A program of `examples` as a module."""
    specification = importlib.util.spec_from_file_location("nemo_rl_program", script)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
