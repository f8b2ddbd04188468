#!/usr/bin/env bash
# The guess: in a batch, a row's logits are those of the row alone, up to rounding. With dynamic RoPE a text beyond the
# trained length gets scaled frequencies, and a text within it the trained ones.
#
# What happens: the frequencies follow the longest row of the batch. A short row beside a long one is rotated with the
# long one's, and gets other logits. Alone again, it gets the trained frequencies back.
#
# Why it matters: evaluation in batches scores a short question by what lies beside it, so scores change with the batch
# size and the order of rows. In RL, a completion that is sampled in one company and trained in another has other
# probabilities, without any fault in either program. Batch rows of one side of the trained length together.
#
# Versions: transformers 5.23.0, torch 2.13.0. Date: 2026-11-29.
#
# Seen:
#   transformers 5.23.0 torch 2.13.0
#   default: the short row's logits beside a long row are off by 0.0000 of their norm
#   dynamic: the short row's logits beside a long row are off by 0.5985 of their norm
#   dynamic: alone again, off by 0.0000
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
uv venv --quiet environment
export VIRTUAL_ENV="$folder/environment" OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
uv pip install --quiet --exclude-newer 2026-11-28 torch==2.13.0 transformers==5.23.0 numpy==2.4.6

cat > program.py <<'PYTHON'
import sys

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

SHORT, LONG, TRAINED = 24, 256, 64
print("transformers", transformers.__version__, "torch", torch.__version__.split("+")[0])


def off(kind):
    """Relative distance of the short row's logits from those alone: beside a long row, and alone again."""
    torch.manual_seed(0)
    rope = {"rope_type": kind, "rope_theta": 10000.0} | ({"factor": 4.0} if kind == "dynamic" else {})
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=TRAINED, rope_parameters=rope, initializer_range=0.3,
    )
    model = LlamaForCausalLM(config).double().eval()
    short, long = torch.randint(1, 64, (1, SHORT)), torch.randint(1, 64, (1, LONG))
    padded = torch.cat([short, torch.zeros(1, LONG - SHORT, dtype=torch.long)], dim=1)  # causal: nothing sees the end
    mask = torch.ones(2, LONG, dtype=torch.long)
    mask[0, SHORT:] = 0
    with torch.no_grad():
        alone = model(short).logits[0]
        beside = model(torch.cat([padded, long]), attention_mask=mask).logits[0, :SHORT]
        again = model(short).logits[0]
    return [float((one - alone).norm() / alone.norm()) for one in (beside, again)]


found = {kind: off(kind) for kind in ("default", "dynamic")}
for kind, (beside, _) in found.items():
    print(f"{kind}: the short row's logits beside a long row are off by {beside:.4f} of their norm")
print(f"dynamic: alone again, off by {found['dynamic'][1]:.4f}")
if found["default"][0] > 1e-9 or found["dynamic"][0] < 0.01 or found["dynamic"][1] > 1e-9:
    sys.exit("changed: a row no longer has the frequencies of the longest one beside it")
PYTHON
environment/bin/python program.py
