"""Which models can be computed so that every way gives the same bits."""

import torch
from transformers import PreTrainedModel
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHForCausalLM

from nemotron_engines.exact import experts
from nemotron_engines.kernels import mamba_older


def why_not(model: PreTrainedModel) -> str | None:
    """What keeps a model from it; None where nothing does, and the model is then ready for it."""
    kinds = {(parameter.device.type, parameter.dtype) for parameter in model.parameters()}
    config = model.config
    reasons = {
        f"{type(model).__name__} is no NemotronH": not isinstance(model, NemotronHForCausalLM),
        "this transformers is an older one": mamba_older.is_older(),
        "the model is on a GPU": any(device != "cpu" for device, _ in kinds),
        "its weights are not float32": any(dtype != torch.float32 for _, dtype in kinds),
        "its weights are in shards": any(hasattr(parameter, "full_tensor") for parameter in model.parameters()),
        "it has more than one thread; set run.threads=1": torch.get_num_threads() > 1,
        "activations are computed twice": getattr(model, "is_activation_checkpointing", False),
        "its Mamba layers use another activation than silu": getattr(config, "mamba_hidden_act", "silu") != "silu",
    }
    if (reason := next((text for text, is_so in reasons.items() if is_so), None)) is None:
        model.set_experts_implementation(experts.NAME)
    return reason
