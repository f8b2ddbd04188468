"""From Automodel's last checkpoint to the folder that every later stage reads.

model.safetensors (merged, where adapters were trained)   config.json   tokenizer files   adapter/ (PEFT layout)
"""

import json
import shutil
from pathlib import Path

from safetensors import safe_open

from nemotron_data.tokenizers.folder import copy_tokenizer
from nemotron_engines.automodel.adapter import merge_adapter
from nemotron_shared.atomic import read_json, write_text
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.models.weights import ADAPTER, ADAPTER_CONFIG, ADAPTER_WEIGHTS


def export(checkpoint: Path, base: Path, base_name: str | None, tokenizer: Path, output: Path) -> None:
    """Write the trained model as a Hugging Face folder.

    Args:
        checkpoint: the run's last checkpoint; base: the model folder that training began with, and what an
            adapter calls it (None where it was made of random weights).

    Raises:
        UserError: the checkpoint's tensors are not those of the base model.
    """
    trained = checkpoint / "model"
    if (trained / ADAPTER_WEIGHTS).is_file():
        adapter = output / ADAPTER
        adapter.mkdir()
        shutil.copyfile(trained / ADAPTER_WEIGHTS, adapter / ADAPTER_WEIGHTS)
        settings = read_json(trained / ADAPTER_CONFIG) | {"base_model_name_or_path": base_name}
        write_text(adapter / ADAPTER_CONFIG, json.dumps(settings, indent=2) + "\n")
        merge_adapter(base, adapter, output)
    else:
        consolidated = trained / "consolidated"
        before, after = shapes(base), shapes(consolidated)
        if before != after:
            differing = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
            raise UserError(
                f"{consolidated}: {len(differing)} tensors differ in name or shape from the base model's, "
                f"first {differing[0]}"
            )
        for file in (*consolidated.glob("*.safetensors"), *consolidated.glob("*.safetensors.index.json")):
            shutil.copyfile(file, output / file.name)
    for name in ("config.json", "generation_config.json"):
        if (base / name).is_file():
            shutil.copyfile(base / name, output / name)
    copy_tokenizer(tokenizer, output)


def shapes(folder: Path) -> dict[str, list[int]]:
    """Name and shape of every tensor of a folder, read from the headers."""
    found: dict[str, list[int]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            names = list(tensors.keys())
            found |= {name: tensors.get_slice(name).get_shape() for name in names}
    return found
