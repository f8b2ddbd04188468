#!/usr/bin/env bash
# The guess: `tie_word_embeddings=True` gives a model one matrix for its input and its output, as it does for Llama.
# A kind of model that cannot do so refuses it.
#
# What happens: NemotronH takes the setting, writes it into config.json, and ties nothing. It has two matrices that
# train apart and are both saved. There is no warning.
#
# Why it matters: a small model has up to half of its weights in these two matrices. It is larger than planned, and its
# folder says something else than it holds: a reader that goes by the config takes the embedding for the head and drops
# the trained one. Compare the two tensors, not the setting.
#
# Versions: transformers 5.23.0, torch 2.13.0. Date: 2026-11-29.
#
# Seen:
#   transformers 5.23.0 torch 2.13.0
#   Llama:     one matrix: True, saved matrices of the vocabulary: 1, tie_word_embeddings of config.json: True
#   NemotronH: one matrix: False, saved matrices of the vocabulary: 2, tie_word_embeddings of config.json: True
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
uv venv --quiet environment
export VIRTUAL_ENV="$folder/environment"
uv pip install --quiet --exclude-newer 2026-11-28 torch==2.13.0 transformers==5.23.0 numpy==2.4.6

environment/bin/python -W ignore - <<'PYTHON'
import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, NemotronHConfig, NemotronHForCausalLM

print("transformers", transformers.__version__, "torch", torch.__version__.split("+")[0])
transformers.utils.logging.disable_progress_bar()
SIZES = dict(vocab_size=96, hidden_size=32, intermediate_size=64, num_attention_heads=4, tie_word_embeddings=True)


def looked_at(name: str, model) -> tuple[bool, int, bool]:
    """Say whether input and output are one matrix, how many are saved, and what the saved config says."""
    one = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    model.save_pretrained(name)
    saved = [tensor for tensor in load_file(f"{name}/model.safetensors").values() if 96 in tensor.shape]
    says = json.loads((Path(name) / "config.json").read_text())["tie_word_embeddings"]
    print(
        f"{name + ':':10} one matrix: {one}, saved matrices of the vocabulary: {len(saved)},"
        f" tie_word_embeddings of config.json: {says}"
    )
    return one, len(saved), says


llama = looked_at("Llama", LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=1)))
nemotron = looked_at(
    "NemotronH",
    NemotronHForCausalLM(
        NemotronHConfig(
            **SIZES, layers_block_type=["attention"], mamba_num_heads=4, mamba_head_dim=16, ssm_state_size=16
        )
    ),
)
if (llama, nemotron) != ((True, 1, True), (False, 2, True)):
    sys.exit("changed: NemotronH ties its matrices, or no longer says so")
PYTHON
