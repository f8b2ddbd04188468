"""Publish the trained model with its adapters merged, and the adapters separately.

model.safetensors   config.json   tokenizer files   adapter/adapter_model.safetensors   adapter/adapter_config.json
"""

import json
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file

from nemotron_shared.models.weights import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from nemotron_shared.system.atomic import write_text
from nemotron_shared.system.errors import UserError

TOKENS = 24
# Largest relative change of the logits, for half of the tokens. In bfloat16, rounding alone sends tokens to other
# experts and changes logits by a few percent; only a failed merge changes them by half.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.5}


def save_adapter(model: PeftModel, folder: Path, base: str | None) -> None:
    """Write the adapters in PEFT's layout, the same bytes for the same weights.

    Args:
        base: the model folder that training started from; None for random weights.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors_of(model).items()}
    save_file(tensors, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    settings = model.peft_config["default"].to_dict() | {"base_model_name_or_path": base, "inference_mode": True}
    plain = {name: sorted(value) if isinstance(value, (set, list)) else value for name, value in settings.items()}
    write_text(folder / ADAPTER_CONFIG, json.dumps(plain, indent=2, sort_keys=True, default=str) + "\n")


def load_adapter(model: PeftModel, folder: Path) -> None:
    """Load saved adapters into a model that has the same adapters.

    Raises:
        UserError: the model has different adapters.
    """
    saved = load_file(folder / ADAPTER_WEIGHTS)
    wanted = {name: value.shape for name, value in tensors_of(model).items()}
    differing = sorted(
        name for name in wanted.keys() | saved.keys() if name not in saved or wanted.get(name) != saved[name].shape
    )
    if differing:
        what = f"{folder}: {len(differing)} tensors do not match engine.peft, the first is {differing[0]}"
        raise UserError(what, "start over with the same command and --force")
    set_peft_model_state_dict(model, saved)


def tensors_of(model: PeftModel) -> dict[str, torch.Tensor]:
    """The adapters by PEFT's names; avoids `auto`, which would look up the base model on the hub."""
    return get_peft_model_state_dict(model, save_embedding_layers=False)


def merged(model: PeftModel) -> tuple[Any, float]:
    """Merge the adapters into the weights; returns the model and the relative change of its logits.

    Raises:
        UserError: the merged model's logits differ too much.
    """
    model.eval()
    beside = _logits(model)
    base: Any = model.merge_and_unload(safe_merge=True)
    length = beside.norm(dim=-1)
    moved = (_logits(base) - beside).norm(dim=-1) / length.where(length > 0, 1)  # a token's logits may all be 0
    error = float(moved.median())
    tolerance = TOLERANCE[torch.bfloat16 if base.dtype == torch.bfloat16 else torch.float32]
    if not error <= tolerance:
        raise UserError(
            f"merging the adapters changes the model's logits by {error:.1e} of their norm (allowed: {tolerance:g}); "
            "the adapters are in the last checkpoint",
            "lower engine.peft.alpha or optimizer.lr: adapters as large as the weights do not merge in this precision",
        )
    return base, error


@torch.no_grad()
def _logits(model: Any) -> torch.Tensor:
    # spread over the vocabulary, because its first tokens are mostly special
    ids = torch.linspace(0, model.config.vocab_size - 1, TOKENS, device=model.device).long()[None]
    return model(input_ids=ids, use_cache=False).logits.float()
