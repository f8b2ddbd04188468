#!/usr/bin/env bash
# The guess: `from_pretrained(dtype=torch.bfloat16)` and `from_pretrained(dtype=torch.float32).to(torch.bfloat16)` are
# the same model: the weights are rounded once, either way.
#
# What happens: the parameters are equal, but the frequencies of rotary positions are a buffer. `from_pretrained`
# keeps them in float32; `.to(torch.bfloat16)` rounds them to 8 bits. The error of an angle grows with the position:
# from a few hundred tokens on, far positions are turned by the wrong angle altogether. Saving the weights does not
# show it, since the buffer is not saved.
#
# Why it matters: a training that casts the model in memory learns other positions than those with which the saved
# folder is read later, and the two kinds of log-probabilities (training, inference) drift apart with the length.
#
# Versions: transformers 5.23.0, torch 2.13.0. Date: 2026-11-29.
#
# Seen:
#   transformers 5.23.0 torch 2.13.0
#   parameters equal: True
#   type of the frequencies: torch.float32 and torch.bfloat16
#   position   100: largest difference of a cosine 0.12
#   position  1000: largest difference of a cosine 0.90
#   position 10000: largest difference of a cosine 1.98
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
transformers.utils.logging.disable_progress_bar()
config = LlamaConfig(vocab_size=64, hidden_size=128, intermediate_size=64, num_hidden_layers=1, num_attention_heads=1)
LlamaForCausalLM(config).save_pretrained("model")
read = LlamaForCausalLM.from_pretrained("model", dtype=torch.bfloat16)
cast = LlamaForCausalLM.from_pretrained("model", dtype=torch.float32).to(torch.bfloat16)
same = all(torch.equal(one, other) for one, other in zip(read.parameters(), cast.parameters()))
rotary = [model.model.rotary_emb for model in (read, cast)]
print("parameters equal:", same)
print("type of the frequencies:", " and ".join(str(part.inv_freq.dtype) for part in rotary))

differences = []
for position in (100, 1000, 10000):
    of_read, of_cast = (part(torch.zeros(1), torch.tensor([[position]]))[0] for part in rotary)
    differences.append((of_read - of_cast).abs().max().item())
    print(f"position {position:5}: largest difference of a cosine {differences[-1]:.2f}")

if not same or differences[1] < 0.1:
    sys.exit("changed: a cast keeps the frequencies of the positions")
PYTHON
