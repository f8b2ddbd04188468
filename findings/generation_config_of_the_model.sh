#!/usr/bin/env bash
# The guess: `generate(generation_config=GenerationConfig(...))` samples with that config and with nothing else. Two
# models with the same weights then sample the same tokens with one explicit config and one seed.
#
# What happens: a field that the explicit config leaves unset is taken from `model.generation_config`, which comes
# from the file generation_config.json beside the weights. `top_k` in that file limits what the explicit config
# samples. Only a value that is set, such as `top_k=0`, keeps the file out.
#
# Why it matters: RL estimates the policy gradient from tokens sampled from the whole distribution. With a model whose
# folder asks for `top_k: 2`, the samples come from another distribution than the one whose log-probabilities are
# trained, and nothing says so.
#
# Versions: transformers 5.23.0, torch 2.13.0. Date: 2026-11-28.
#
# Seen:
#   transformers 5.23.0 torch 2.13.0
#   distinct tokens, the model's file sets nothing, explicit top_k=0:      64
#   distinct tokens, the model's file sets top_k=2, explicit leaves it out: 2
#   distinct tokens, the model's file sets top_k=2, explicit top_k=0:       64
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
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, set_seed

print("transformers", transformers.__version__, "torch", torch.__version__.split("+")[0])
set_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
).eval()
prompts = torch.tensor([[1, 5, 7]]).repeat(1000, 1)


def distinct(of_the_model: dict, **explicit) -> int:
    """Count the different first tokens of 1000 samples of one prompt with an explicit config."""
    model.generation_config = GenerationConfig(**of_the_model)
    set_seed(0)
    config = GenerationConfig(do_sample=True, max_new_tokens=1, **explicit)
    return len(model.generate(prompts, generation_config=config)[:, -1].unique())


plain = distinct({}, top_k=0)
inherited = distinct({"do_sample": True, "top_k": 2})
set_to_zero = distinct({"do_sample": True, "top_k": 2}, top_k=0)
print("distinct tokens, the model's file sets nothing, explicit top_k=0:     ", plain)
print("distinct tokens, the model's file sets top_k=2, explicit leaves it out:", inherited)
print("distinct tokens, the model's file sets top_k=2, explicit top_k=0:      ", set_to_zero)

if (inherited, set_to_zero) != (2, plain) or plain <= 2:
    sys.exit("changed: an explicit generation config no longer takes top_k from the model's")
PYTHON
