"""A tiny Super 3 with uneven routers, and settings to train it with."""

from typing import Any

import torch
from transformers import PreTrainedModel

from nemotron_engines.modeling.build import ONLY_MADE, random_model
from nemotron_shared.config.schema import ModelLoadingEngine, ModelSection, TransformersEngine

VOCABULARY, ROWS, TOKENS, EXPERTS, TOP_K = 64, 2, 12, 8, 2
SETTINGS: dict[str, Any] = {
    "name": "transformers", "device": "cpu", "attn_implementation": "sdpa", "allow_reference_kernels": False,
    "dtype": "float32", "save_dtype": None, "gradient_checkpointing": False, "optimizer": "adamw", "strategy": "ddp",
    "peft": None,
    "moe_router_bias_update_rate": 0.0, "moe_aux_loss_coeff": 0.0,
    "mtp_num_layers": 0, "mtp_loss_scaling_factor": 0.0,
}  # fmt: skip


class Tokenizer:
    """What making a model asks a tokenizer."""

    bos_token_id, eos_token_id, pad_token_id = 0, 1, 2

    def __len__(self) -> int:
        return VOCABULARY


def engine(**settings: Any) -> TransformersEngine:
    return TransformersEngine(**(SETTINGS | settings))


def tiny_model(made_by: ModelLoadingEngine = ONLY_MADE, **overrides: Any) -> PreTrainedModel:
    """Two layers of experts whose corrections are not zero."""
    fields = {"hybrid_override_pattern": "ME*E", **overrides}
    model = random_model(ModelSection(architecture="super3_tiny", overrides=fields), Tokenizer(), 11, made_by).train()
    with torch.no_grad():  # a correction that is zero would agree whatever is done with it
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.linspace(-0.2, 0.2, len(buffer)))
        for name, parameter in model.named_parameters():
            if name.endswith("gate.weight"):
                parameter.mul_(10)
    return model


def some_ids(rows: int = ROWS, tokens: int = TOKENS) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(5))


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Those of the last backward pass, which are forgotten."""
    found = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    model.zero_grad()
    return found
