#!/usr/bin/env bash
# The guess: `router_jitter_noise` of a mixture of experts is noise for training. In evaluation mode it does nothing, so
# two models that differ in it alone give the same answer, and setting it to 0 for sampling is harmless.
#
# What happens: in Phi-3.5-MoE of transformers it is also a bound: experts whose score is too far below the best one (by
# more than twice the jitter) are masked before the softmax that weighs the chosen expert, in evaluation mode as well.
# Another value gives other weights of the experts and another model. With 0, each chosen expert has weight 1.
#
# Why it matters: the setting looks like one of the optimiser and is one of the model. Whoever turns "noise" off for RL,
# so that two passes agree, or leaves it out when converting the weights, changes every log-probability.
#
# Versions: transformers 5.23.0, torch 2.13.0. Date: 2026-11-29.
#
# Seen:
#   transformers 5.23.0 torch 2.13.0
#   largest difference in evaluation mode, jitter 0.01 and 0.01: 0 nats
#   largest difference in evaluation mode, jitter 0.01 and 0.0: 0.47 nats
#   largest difference in evaluation mode, jitter 0.01 and 0.1: 0.85 nats
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
uv venv --quiet environment
export VIRTUAL_ENV="$folder/environment"
uv pip install --quiet --exclude-newer 2026-11-28 torch==2.13.0 transformers==5.23.0 numpy==2.4.6

environment/bin/python - <<'PYTHON'
import sys

import torch
import transformers
from transformers import PhimoeConfig, PhimoeForCausalLM

print("transformers", transformers.__version__, "torch", torch.__version__.split("+")[0])


@torch.no_grad()
def answer(jitter: float) -> torch.Tensor:
    """Log-probabilities in evaluation mode of a model that differs in its jitter alone."""
    torch.manual_seed(0)
    model = PhimoeForCausalLM(
        PhimoeConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            num_local_experts=8,
            router_jitter_noise=jitter,
        )
    ).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.mul_(5)  # random weights are small, and so is all that they do
    return model(torch.arange(3, 60)[None]).logits.log_softmax(-1)


usual, again, none, more = answer(0.01), answer(0.01), answer(0.0), answer(0.1)
found = {
    "0.01 and 0.01": (usual - again).abs().max().item(),
    "0.01 and 0.0": (usual - none).abs().max().item(),
    "0.01 and 0.1": (usual - more).abs().max().item(),
}
for pair, difference in found.items():
    print(f"largest difference in evaluation mode, jitter {pair}: {difference:.2g} nats")

same, *others = found.values()
if same != 0 or min(others) < 1e-3:
    sys.exit("changed: the jitter does not act in evaluation mode")
PYTHON
