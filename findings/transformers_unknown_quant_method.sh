#!/usr/bin/env bash
# The guess: a `quantization_config` in config.json whose `quant_method` transformers does not know is an error. If it
# is not, the model that was loaded without quantisation is saved without that entry.
#
# What happens: the entry is skipped with a warning, the weights are loaded and trained as they are, and
# `save_pretrained` writes the entry again beside them. The new folder says that its float32 weights are quantised.
#
# Why it matters: a reader that knows the method takes the folder at its word and looks for packed weights and scales
# that are not there. A pipeline has to take the entry out before it publishes a trained model.
#
# Versions: transformers 5.23.0, torch 2.13.0. Date: 2026-11-28.
#
# Seen:
#   transformers 5.23.0 torch 2.13.0
#   types of the saved weights: {'torch.float32'}
#   quantization_config beside them: {'bits': 4, 'quant_method': 'house_int4'}
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
uv venv --quiet environment
export VIRTUAL_ENV="$folder/environment"
uv pip install --quiet --exclude-newer 2026-11-28 torch==2.13.0 transformers==5.23.0 numpy==2.4.6

environment/bin/python - <<'PYTHON'
import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

print("transformers", transformers.__version__, "torch", torch.__version__.split("+")[0])
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()  # its warning lists every method that it knows
config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4)
LlamaForCausalLM(config).save_pretrained("given")
written = json.loads(Path("given/config.json").read_text())
written["quantization_config"] = {"quant_method": "house_int4", "bits": 4}
Path("given/config.json").write_text(json.dumps(written))

model = AutoModelForCausalLM.from_pretrained("given")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tokens = torch.arange(3, 20)[None]
model(tokens, labels=tokens).loss.backward()
optimizer.step()
model.save_pretrained("trained")

saved = json.loads(Path("trained/config.json").read_text()).get("quantization_config")
kinds = {str(tensor.dtype) for tensor in load_file("trained/model.safetensors").values()}
print("types of the saved weights:", kinds)
print("quantization_config beside them:", saved)

if kinds != {"torch.float32"} or saved is None or saved["quant_method"] != "house_int4":
    sys.exit("changed: an unknown quant_method is no longer written beside weights that are not quantised")
PYTHON
