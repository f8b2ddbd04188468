"""Convert Automodel's last checkpoint to the model folder that later stages read.

    model.safetensors (adapters merged)   config.json   tokenizer files   adapter/ (PEFT layout)

An adapter is merged into the weights it was trained with: W + alpha / rank * B @ A.
"""

import json
import re
import shutil
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from nemotron_data.tokenizers.folder import copy_tokenizer
from nemotron_shared.models.weights import ADAPTER, ADAPTER_CONFIG, ADAPTER_WEIGHTS
from nemotron_shared.system.atomic import read_json, write_text
from nemotron_shared.system.errors import UserError


def export(checkpoint: Path, base: Path, base_name: str | None, tokenizer: Path, output: Path) -> None:
    """Write the trained model as a Hugging Face folder.

    Args:
        checkpoint: the run's last checkpoint; base: the model folder that training started from, and its name in
            the adapter (None if it was made from random weights).

    Raises:
        UserError: the checkpoint's tensors differ from the base model's.
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


PREFIX = "base_model.model."
FIRST, SECOND = ".lora_A.weight", ".lora_B.weight"


def merge_adapter(base: Path, adapter: Path, output: Path) -> list[str]:
    """Write the base model's safetensors with the adapter added; returns the names of the changed tensors.

    Raises:
        UserError: the adapter is not plain LoRA, or does not fit the base model.
    """
    deltas = adapter_deltas(adapter)
    changed: list[str] = []
    for file in sorted(base.glob("*.safetensors")):
        merged = load_file(file)
        with safe_open(file, "pt") as header:
            metadata = header.metadata()
        for name, weight in merged.items():
            delta = deltas.get(in_memory(name))
            if delta is None:
                continue
            if weight.shape != delta.shape:
                what = f"adapter for {name}: {tuple(delta.shape)} does not fit a weight of {tuple(weight.shape)}"
                raise UserError(what)
            # computed in float32 and kept in the weight's own type
            merged[name] = (weight.float() + delta).to(weight.dtype)
            changed.append(name)
        save_file(merged, output / file.name, metadata=metadata or {"format": "pt"})
    missing = sorted(deltas.keys() - set(map(in_memory, changed)))
    if missing:
        raise UserError(f"{adapter}: {len(missing)} adapters fit no tensor of {base}, first {missing[0]}")
    for index in base.glob("*.safetensors.index.json"):
        shutil.copyfile(index, output / index.name)
    return sorted(changed)


def in_memory(name: str) -> str:
    """Name of a tensor in transformers' model; published files call it `backbone. ...`."""
    return re.sub(r"^backbone\.", "model.", name)


def adapter_deltas(adapter: Path) -> dict[str, torch.Tensor]:
    """Update of each weight, float32, by the weight's name."""
    settings = read_json(adapter / ADAPTER_CONFIG)
    for key in ("use_dora", "use_rslora"):
        if settings.get(key):
            raise UserError(f"{adapter}: adapters with {key} cannot be merged", "train without it")
    values = {name.removeprefix(PREFIX): value for name, value in load_file(adapter / ADAPTER_WEIGHTS).items()}
    unknown = [name for name in values if not name.endswith((FIRST, SECOND))]
    if unknown:
        raise UserError(f"{adapter}: cannot merge '{unknown[0]}': it is not a LoRA matrix of a linear layer")
    scale = settings["lora_alpha"] / settings["r"]
    modules = [name.removesuffix(FIRST) for name in values if name.endswith(FIRST)]
    return {
        f"{module}.weight": scale * values[module + SECOND].float() @ values[module + FIRST].float()
        for module in modules
    }
