"""Write the table of one NeMo-RL version, from a checkout of it.

    python -m nemotron_engines.nemo_rl.generate --checkout NEMO_RL_CHECKOUT --version v0.7.0

For each config that our recipes build on, the table holds the digest and the keys that our own settings, rules and
estimates read, so that a recipe can be checked without NeMo-RL.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

from nemotron_engines.nemo_rl.dialect import GRPO, SFT
from nemotron_engines.nemo_rl.needs import PLACEHOLDER, READ
from nemotron_engines.nemo_rl.versions import TABLES, VERSIONS, digest_of, load_base
from nemotron_engines.overrides import at, has, leaves
from nemotron_shared.system.atomic import write_text

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


def main() -> None:
    """Write `tables/<version>.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, required=True, help="folder of NeMo-RL's source")
    parser.add_argument("--version", choices=sorted(VERSIONS), required=True)
    arguments = parser.parse_args()
    file = TABLES / f"{arguments.version}.json"
    table = make_table(arguments.checkout)
    write_text(file, as_text(table))
    print(f"{file}: {len(table)} configs")


def make_table(checkout: Path) -> dict[str, Any]:
    """Contents of the table, as JSON values."""
    table = {}
    for algorithm, paths in BASES.items():
        for path in paths:
            if (checkout / path).is_file():
                values = load_base(checkout, path)
                table[path] = {"algorithm": algorithm, "digest": digest_of(values), "values": kept(values)}
    return table


def kept(values: dict[str, Any]) -> dict[str, Any]:
    """By dotted key: values that we read, values that the user or the environment must set, and their references."""
    found: dict[str, Any] = {}
    waiting = [key for key in (*GRPO, *SFT, *READ) if "." in key and has(values, key)]
    waiting += [key for key, value in leaves(values) if PLACEHOLDER in str(value) or "${oc.env:" in str(value)]
    seen: set[str] = set()
    while waiting:
        key = waiting.pop()
        if key in seen:
            continue
        seen.add(key)
        value = at(values, key)
        found |= dict(leaves({key: value}))
        waiting += [name for name in re.findall(r"\$\{([\w.]+)\}", json.dumps(value)) if has(values, name)]
    return dict(sorted(found.items()))


def as_text(table: dict[str, Any]) -> str:
    """JSON with one line per key."""
    parts = []
    for path, one in table.items():
        lines = (f"   {json.dumps(key)}: {json.dumps(value)}" for key, value in one["values"].items())
        about = f'{{"algorithm": "{one["algorithm"]}", "digest": "{one["digest"]}",\n  "values": {{\n'
        parts.append(f" {json.dumps(path)}: {about}" + ",\n".join(lines) + "}}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    main()
