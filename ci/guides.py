"""Check that the public guides this project implements still work here, if their texts are available.

    uv run python ci/guides.py FOLDER        # a folder of texts or Markdown; without one there is nothing to do

Checks the YAML blocks in Automodel's and NeMo-RL's own keys, the overrides in NeMo-RL's keys, and the `nemotron`
commands without `--run PROFILE`. Each must compose without losing a key.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from nemotron_shared.config.compose import compose
from nemotron_shared.config.overrides import leaves
from nemotron_shared.system.errors import UserError

STAGES = Path(__file__).resolve().parent.parent / "stages"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
OVERRIDE = re.compile(
    r"(?<![\w.])(\+\+(?:policy|logger|checkpointing)\.[\w.]+|(?:policy|data|logger|cluster)\.[\w.]+)=(\S+)"
)
AUTOMODEL, NEMO_RL = {"dataset", "peft", "step_scheduler", "validation_dataset"}, {"checkpointing", "policy"}


def merged(blocks: list[str], sections: set[str]) -> dict[str, Any]:
    """Merge a guide's YAML blocks into the sections of one file."""
    found: dict[str, Any] = {}
    for block in blocks:
        content = yaml.safe_load(block)
        if isinstance(content, dict) and content.keys() & sections:
            found |= content
    return found


def understood(stage: str, choice: str, overrides: list[str], given: set[str]) -> Iterator[str]:
    """Problems of a config: it does not compose, or a key is missing from the result."""
    try:
        found = compose(STAGES / stage / "config", choice, overrides)
    except UserError as error:
        yield str(error)
        return
    seen = " ".join([*found.origins.values(), *found.notes])
    yield from (f"{key} is lost" for key in sorted(given) if key not in seen and f"{key} " not in seen)


def faults(text: str, scratch: Path) -> Iterator[str]:
    """All problems of one guide."""
    blocks = [body for language, body in BLOCK.findall(text) if language == "yaml"]
    theirs = scratch / "theirs.yaml"
    if (content := merged(blocks, AUTOMODEL)) and "peft" in content:
        theirs.write_text(yaml.safe_dump(content, sort_keys=False))
        fixed = {key for key, _ in leaves(content) if key.endswith("_target_")}
        yield from understood("sft", str(theirs), [], {key for key, _ in leaves(content)} - fixed)
    if content := merged(blocks, NEMO_RL):
        theirs.write_text(yaml.safe_dump({"defaults": "../../sft.yaml", "policy": {}} | content, sort_keys=False))
        yield from understood("sft", str(theirs), [], {key for key, _ in leaves(content)})
    stage, choice = ("rl", "nano3") if "grpo" in text and "nano" in text.lower() else ("sft", "super49b")
    for key, value in OVERRIDE.findall(text):
        value = value.rstrip("`\"'").replace("$", "").replace("{", "").replace("}", "")
        yield from understood(stage, choice, [f"{key}={value}"], {key.lstrip("+")})
    for line in re.findall(r"^uv run (nemotron \w[^\n#\[]*)$", text, re.MULTILINE):
        words = re.sub(r"--(run|batch) \S+", "", line).split()
        done = subprocess.run([*words, "--dry-run"], capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):  # 1: understood, but this machine cannot run it
            yield f"{line}: {done.stderr.strip()}"


def main(folder: Path, scratch: Path) -> int:
    """Print problems; returns the exit code."""
    found = [
        f"{file.name}: {fault}" for file in sorted(folder.glob("*")) for fault in faults(file.read_text(), scratch)
    ]
    print("\n".join(found) or f"{folder}: everything of {len(list(folder.glob('*')))} guides is understood")
    return 1 if found else 0


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        sys.exit(main(Path(sys.argv[1]), Path(place)))
