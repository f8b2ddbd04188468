#!/usr/bin/env bash
# The guess: `pad_token_id` in config.json says which token fills short rows. It has no part in the loss, so an end
# token that is also the padding (a common choice) is learnt like any other token where it stands inside a text.
#
# What happens: models hand `pad_token_id` to `torch.nn.Embedding` as `padding_idx`. The row of that token gets no
# gradient from input, wherever the token stands, and starts as zeros in a new model. Setting the id in a config after
# the model was built changes nothing until the model is saved and loaded: the second training is then another than
# the first.
#
# Why it matters: in a conversation the end token stands between the turns, and the model reads it there. With the end
# as padding, a model trained from scratch reads zeros at every end of a turn for ever, and an existing one cannot
# adapt it. Leave `pad_token_id` out of the model's config (the tokenizer may have it), or use a token of its own.
#
# Versions: transformers 5.23.0, torch 2.13.0. Date: 2026-11-29.
#
# Seen:
#   transformers 5.23.0 torch 2.13.0
#   no padding in the config:        norm of the end token's row 0.094, of its gradient 1.04
#   padding is the end token:        norm of the end token's row 0.000, of its gradient 0.00
#   set after it was built:          norm of the end token's row 0.094, of its gradient 1.04
#   the same, saved and loaded:      norm of the end token's row 0.094, of its gradient 0.00
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
END = 2


def made(**extra) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    return LlamaForCausalLM(LlamaConfig(**sizes, eos_token_id=END, **extra))


def end_token(model: LlamaForCausalLM) -> tuple[float, float]:
    """Norms of the end token's row and of its gradient, after a text in which the end stands between two turns."""
    tokens = torch.tensor([[5, 6, 7, END, 8, 9, 10]])
    model(tokens, labels=tokens).loss.backward()
    row = model.model.embed_tokens.weight
    return row[END].norm().item(), row.grad[END].norm().item()


later = made()
later.config.pad_token_id = END
later.save_pretrained("saved")
found = {
    "no padding in the config:": end_token(made()),
    "padding is the end token:": end_token(made(pad_token_id=END)),
    "set after it was built:": end_token(later),
    "the same, saved and loaded:": end_token(LlamaForCausalLM.from_pretrained("saved")),
}
for name, (row, gradient) in found.items():
    print(f"{name:32} norm of the end token's row {row:.3f}, of its gradient {gradient:.2f}")

if [(row > 0, gradient > 0) for row, gradient in found.values()] != [
    (True, True),
    (False, False),
    (True, True),
    (True, False),
]:
    sys.exit("changed: the row of the padding token is learnt, or starts, in another way")
PYTHON
