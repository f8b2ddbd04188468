#!/usr/bin/env bash
# The guess: `load_in_4bit=True` of bitsandbytes puts the large matrices of a model into 4 bits, and torchao's
# `quantize_` into 8. A mixture of experts, nearly all of whose weights are in its experts, becomes smaller by the
# factor that a dense model does.
#
# What happens: both look for modules of the class `torch.nn.Linear`. transformers 5 holds the experts of a layer in
# parameters of three dimensions without such a module, and these stay as they were. Attention is quantised, and the
# model says that it is loaded in 4 bits. There is no warning. The head is quantised by torchao only.
#
# Why it matters: a model that was chosen to fit into the memory of one GPU at 4 bits needs nearly that of 16 bits. And
# a comparison of qualities at "4 bits" is one of two models that hardly differ. Look at the types of the parameters.
#
# Versions: bitsandbytes 0.50.2, torchao 0.18.0, transformers 5.23.0, torch 2.13.0. Date: 2026-11-29.
#
# Seen:
#   bitsandbytes 0.50.2 torchao 0.18.0 transformers 5.23.0
#   bitsandbytes: attention quantised, experts as before, head as before
#   torchao: attention quantised, experts as before, head quantised
#   is_loaded_in_4bit: True, bytes of the model: 94% of 16 bits
#   warnings that name experts: 0
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
uv venv --quiet environment
export VIRTUAL_ENV="$folder/environment"
uv pip install --quiet --exclude-newer 2026-11-28 \
    torch==2.13.0 transformers==5.23.0 accelerate==1.15.0 bitsandbytes==0.50.2 torchao==0.18.0 numpy==2.4.6

environment/bin/python - 2>errors <<'PYTHON' || { cat errors; exit 1; }
import sys
import warnings
from importlib.metadata import version

import torch
import transformers
from torchao.quantization import Int8WeightOnlyConfig, quantize_
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, MixtralConfig, MixtralForCausalLM

print(*(f"{name} {version(name)}" for name in ("bitsandbytes", "torchao", "transformers")))
transformers.utils.logging.disable_progress_bar()
config = MixtralConfig(
    vocab_size=128,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    num_local_experts=8,
    dtype="bfloat16",
)
MixtralForCausalLM(config).save_pretrained("model")
PARTS = {"attention": "self_attn", "experts": "experts", "head": "lm_head"}


def quantised(model: torch.nn.Module) -> dict[str, bool]:
    """Say of each part whether all of its weights have another class than an ordinary parameter."""
    return {
        part: all(
            type(parameter) is not torch.nn.Parameter
            for name, parameter in model.named_parameters()
            if piece in name and "norm" not in name
        )
        for part, piece in PARTS.items()
    }


with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    plain = AutoModelForCausalLM.from_pretrained("model", dtype=torch.bfloat16)
    before = plain.get_memory_footprint()
    four = AutoModelForCausalLM.from_pretrained(
        "model", dtype=torch.bfloat16, device_map="cpu", quantization_config=BitsAndBytesConfig(load_in_4bit=True)
    )
    quantize_(plain, Int8WeightOnlyConfig())
found = {"bitsandbytes": quantised(four), "torchao": quantised(plain)}
for library, parts in found.items():
    print(f"{library}:", ", ".join(f"{part} {'quantised' if is_so else 'as before'}" for part, is_so in parts.items()))
ratio = four.get_memory_footprint() / before
print(f"is_loaded_in_4bit: {four.is_loaded_in_4bit}, bytes of the model: {ratio:.0%} of 16 bits")
about = [str(warning.message) for warning in warned if "expert" in str(warning.message).lower()]
print("warnings that name experts:", len(about))

if found != {
    "bitsandbytes": {"attention": True, "experts": False, "head": False},
    "torchao": {"attention": True, "experts": False, "head": True},
}:
    sys.exit("changed: other parts are quantised")
if about or not four.is_loaded_in_4bit or ratio < 0.8:
    sys.exit("changed: the libraries speak of the experts, or the model is smaller")
PYTHON
