#!/usr/bin/env bash
# The guess: transformers recognises documents packed into one row by positions that begin again at 0, and keeps their
# attention apart. A mask of ones says that no token is padding, which is what no mask says.
#
# What happens: positions are looked at only if there is neither a mask nor a cache. `use_cache` is true in a model's
# config unless somebody has changed it, in train mode too, so the plain call makes a cache and lets a document see the
# one before it. So does a mask of ones. There is no warning.
#
# Why it matters: a collator that adds an attention mask, or an evaluation loop beside `Trainer` (which sets use_cache
# to false, as gradient checkpointing does), gets other losses and gradients from the same rows. Pass positions with
# `use_cache=False` and no mask.
#
# Versions: transformers 5.23.0, torch 2.13.0. Date: 2026-11-29.
#
# Seen:
#   transformers 5.23.0 torch 2.13.0
#   second document against the same alone, in nats:
#     positions, use_cache=False:                 9.5e-07
#     positions alone, train mode:                1.7e+00
#     positions, use_cache=False, a mask of ones: 1.7e+00
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
from transformers import LlamaConfig, LlamaForCausalLM

print("transformers", transformers.__version__, "torch", torch.__version__.split("+")[0])
torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
).train()
with torch.no_grad():
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.mul_(5)  # random weights are small, and so is all that they do
tokens = torch.randint(3, 64, (1, 24))  # two documents of 12 tokens
positions = torch.arange(12).repeat(2)[None]


@torch.no_grad()
def difference(**arguments) -> float:
    """Largest difference of log-probabilities of the second document, packed and alone."""
    alone = model(tokens[:, 12:], use_cache=False).logits.log_softmax(-1)
    packed = model(tokens, position_ids=positions, **arguments).logits[:, 12:].log_softmax(-1)
    return (packed - alone).abs().max().item()


apart = difference(use_cache=False)
plain = difference()
masked = difference(use_cache=False, attention_mask=torch.ones_like(tokens))
print("second document against the same alone, in nats:")
print(f"  positions, use_cache=False:                 {apart:.1e}")
print(f"  positions alone, train mode:                {plain:.1e}")
print(f"  positions, use_cache=False, a mask of ones: {masked:.1e}")

if apart > 1e-5 or min(plain, masked) < 1e-3:
    sys.exit("changed: other calls keep packed documents apart")
PYTHON
