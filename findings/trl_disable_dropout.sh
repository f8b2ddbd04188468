#!/usr/bin/env bash
# The guess: TRL's `disable_dropout=True` (the default of DPO, an option of GRPO) turns dropout off, so that two
# passes over the same tokens in train mode give the same log-probabilities.
#
# What happens: it sets `p = 0` in modules of the class torch.nn.Dropout. The attention of transformers' models keeps
# its rate as a plain number, `attention_dropout` of the config, and hands it to the attention function in train mode.
# Models with `attention_dropout: 0.1` in config.json still drop attention weights.
#
# Why it matters: DPO and GRPO compare log-probabilities of two passes. The noise goes into the ratio of the policy to
# itself, which should be exactly 1 at the first step. Set `model.config.attention_dropout = 0` before the model is
# built.
#
# Versions: trl 1.16.0, transformers 5.23.0, torch 2.13.0. Date: 2026-11-28.
#
# Seen:
#   trl 1.16.0 transformers 5.23.0
#   attention_dropout 0.0: two passes differ by 0 nats
#   attention_dropout 0.1: two passes differ by 0.112 nats
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
uv venv --quiet environment
export VIRTUAL_ENV="$folder/environment"
uv pip install --quiet --exclude-newer 2026-11-28 \
    torch==2.13.0 transformers==5.23.0 trl==1.16.0 accelerate==1.15.0 datasets==5.2.0 numpy==2.4.6

environment/bin/python - <<'PYTHON'
import sys

import torch
import transformers
import trl
from transformers import LlamaConfig, LlamaForCausalLM
from trl.trainer.utils import disable_dropout_in_model

print("trl", trl.__version__, "transformers", transformers.__version__)


def difference(attention_dropout: float) -> float:
    """Largest difference of log-probabilities between two passes in train mode after TRL has disabled dropout."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        attention_dropout=attention_dropout,
    )
    model = LlamaForCausalLM(config).train()
    disable_dropout_in_model(model)  # what DPOTrainer and GRPOTrainer call with disable_dropout=True
    tokens = torch.arange(3, 40)[None]
    with torch.no_grad():
        first, second = (model(tokens).logits.log_softmax(-1) for _ in range(2))
    return (first - second).abs().max().item()


without, with_dropout = difference(0.0), difference(0.1)
print(f"attention_dropout 0.0: two passes differ by {without:.3g} nats")
print(f"attention_dropout 0.1: two passes differ by {with_dropout:.3g} nats")

if without != 0 or with_dropout < 1e-3:
    sys.exit("changed: attention dropout is off as well")
PYTHON
