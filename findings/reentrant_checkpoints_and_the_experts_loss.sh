#!/usr/bin/env bash
# The guess: `use_reentrant` of gradient checkpointing chooses an implementation. Loss and gradients are the same with
# True, with False and without checkpointing.
#
# What happens: the load-balancing loss of a mixture of experts is made from router logits that are collected inside
# the layers. A reentrant checkpoint runs a layer without gradients, so these logits have none. The loss shows the
# right value and pushes nothing: gradients are exactly those of `router_aux_loss_coef=0`. There is no warning.
#
# Why it matters: the curve of the balancing loss is there, and the experts are not balanced. Many recipes set
# `gradient_checkpointing_kwargs={"use_reentrant": True}`. Leave it at False.
#
# Versions: transformers 5.23.0, torch 2.13.0. Date: 2026-11-29.
#
# Seen:
#   transformers 5.23.0 torch 2.13.0
#   no checkpointing:    balancing loss 2.0015, norm of its gradient 0.1317
#   use_reentrant=False: balancing loss 2.0015, norm of its gradient 0.1317
#   use_reentrant=True:  balancing loss 2.0015, norm of its gradient 0.0000
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
uv venv --quiet environment
export VIRTUAL_ENV="$folder/environment"
uv pip install --quiet --exclude-newer 2026-11-28 torch==2.13.0 transformers==5.23.0 numpy==2.4.6

environment/bin/python - <<'PYTHON'
import sys
import warnings

import torch
import transformers
from transformers import MixtralConfig, MixtralForCausalLM

print("transformers", transformers.__version__, "torch", torch.__version__.split("+")[0])
tokens = torch.arange(3, 60)[None]


def measured(reentrant: bool | None) -> tuple[float, float]:
    """The balancing loss, and the norm of the part of the gradient that comes from it."""
    gradients, shown = [], 0.0
    for coefficient in (0.0, 1.0):
        torch.manual_seed(0)
        model = MixtralForCausalLM(
            MixtralConfig(
                vocab_size=64,
                hidden_size=32,
                intermediate_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=4,
                num_local_experts=4,
                num_experts_per_tok=2,
                output_router_logits=True,
                router_aux_loss_coef=coefficient,
            )
        ).train()
        if reentrant is not None:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
        model.enable_input_require_grads()
        output = model(tokens, labels=tokens, use_cache=False)
        output.loss.backward()
        shown = output.aux_loss.item()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    return shown, (gradients[1] - gradients[0]).norm().item()


warnings.simplefilter("error")  # a warning would be another behaviour
found = {
    "no checkpointing:   ": measured(None),
    "use_reentrant=False:": measured(False),
    "use_reentrant=True: ": measured(True),
}
for name, (value, gradient) in found.items():
    print(f"{name} balancing loss {value:.4f}, norm of its gradient {gradient:.4f}")

without, other, reentrant = (gradient for _, gradient in found.values())
if without < 1e-3 or abs(other - without) > 1e-5 or reentrant > 1e-7:
    sys.exit("changed: the balancing loss has another gradient")
PYTHON
