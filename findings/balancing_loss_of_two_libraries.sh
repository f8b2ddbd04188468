#!/usr/bin/env bash
# The guess: the load-balancing loss of experts is the one of the Switch Transformer in transformers and in
# megatron-core, so one coefficient means one strength. Perfect balance gives 1.
#
# What happens: transformers adds up the choices of a token, so perfect balance gives the number of experts per token;
# megatron-core divides by it. transformers makes one loss of the router logits of all layers together; megatron-core
# adds the loss of each layer. With k experts per token and L layers, the same coefficient pushes each layer k / L
# times as hard in transformers as in megatron-core.
#
# Why it matters: for 8 experts per token in 48 layers this is a sixth, and for a small model it is more than one. A
# recipe's coefficient cannot be carried over as it stands, and the two curves cannot be laid over each other.
#
# Versions: transformers 5.23.0, megatron-core 0.16.1 (0.19.2, which wants Python 3.12, calculates the same), torch
# 2.13.0. Date: 2026-11-29.
#
# Seen:
#   transformers 5.23.0 megatron-core 0.16.1
#    1 layers, 1 experts per token, balanced: transformers 1.00, megatron-core 1.00; force on a layer 1.000 to 1
#    1 layers, 8 experts per token, balanced: transformers 8.00, megatron-core 1.00; force on a layer 8.000 to 1
#    4 layers, 2 experts per token, balanced: transformers 2.00, megatron-core 4.00; force on a layer 0.500 to 1
#   48 layers, 8 experts per token, balanced: transformers 8.00, megatron-core 48.00; force on a layer 0.167 to 1
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
uv venv --quiet environment
export VIRTUAL_ENV="$folder/environment"
uv pip install --quiet --exclude-newer 2026-11-28 \
    torch==2.13.0 transformers==5.23.0 megatron-core==0.16.1 numpy==2.4.6

environment/bin/python -W ignore - 2>errors <<'PYTHON' || { cat errors; exit 1; }
import sys

import megatron.core
import torch
import transformers
from megatron.core.transformer.moe.moe_utils import switch_load_balancing_loss_func
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

print("transformers", transformers.__version__, "megatron-core", megatron.core.__version__)
EXPERTS, TOKENS = 16, 4096


def of_transformers(logits: list[torch.Tensor], chosen: int) -> torch.Tensor:
    return load_balancing_loss_func(tuple(logits), EXPERTS, chosen)


def of_megatron(logits: list[torch.Tensor], chosen: int) -> torch.Tensor:
    """The sum over layers, as the losses of all layers go into one backward pass."""
    total = torch.zeros(())
    for layer in logits:
        counts = torch.zeros_like(layer).scatter(1, layer.topk(chosen).indices, 1).sum(0)
        probabilities = layer.softmax(-1)
        total = total + switch_load_balancing_loss_func(probabilities, counts, TOKENS, chosen, EXPERTS, 1.0)
    return total


def compared(layers: int, chosen: int) -> tuple[float, float, float]:
    """Both losses at near balance, and the ratio of their gradients with the same unbalanced router in each layer."""
    torch.manual_seed(0)
    even = [torch.randn(TOKENS, EXPERTS) * 1e-3] * layers
    odd = torch.randn(TOKENS, EXPERTS) + torch.linspace(0, 1, EXPERTS)
    gradients = []
    for loss in (of_transformers, of_megatron):
        logits = [odd.clone().requires_grad_() for _ in range(layers)]
        loss(logits, chosen).backward()
        gradients.append(logits[0].grad.norm())
    return of_transformers(even, chosen).item(), of_megatron(even, chosen).item(), (gradients[0] / gradients[1]).item()


for layers, chosen in ((1, 1), (1, 8), (4, 2), (48, 8)):
    one, other, ratio = compared(layers, chosen)
    print(
        f"{layers:2} layers, {chosen} experts per token, balanced: transformers {one:.2f}, megatron-core {other:.2f};"
        f" force on a layer {ratio:.3f} to 1"
    )
    if abs(ratio - chosen / layers) > 1e-3 * chosen or abs(one - chosen) > 0.01 or abs(other - layers) > 0.01 * layers:
        sys.exit("changed: the losses have another ratio")
PYTHON
