#!/usr/bin/env bash
# The guess: making a `transformers.Trainer` leaves the model's config alone, and the trained model generates as the
# given one did.
#
# What happens: `Trainer.__init__` sets `model.config.use_cache = False`, and `save_model` writes it into config.json.
# As long as the file generation_config.json lies beside it, `generate` takes `use_cache` from there and nobody
# notices. Without that file, `generate` calculates the whole sequence again for each new token.
#
# Why it matters: some folders are published without generation_config.json. Whoever samples from such a model after a
# training pays the square of the length. Set `model.config.use_cache` again before the model is saved.
#
# Versions: transformers 5.23.0, torch 2.13.0, accelerate 1.15.0. Date: 2026-11-28.
#
# Seen:
#   transformers 5.23.0 torch 2.13.0
#   use_cache of the given config: True of the saved one: False
#   tokens of each pass with generation_config.json:    [3, 1, 1, 1, 1]
#   tokens of each pass without generation_config.json: [3, 4, 5, 6, 7]
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
uv venv --quiet environment
export VIRTUAL_ENV="$folder/environment"
uv pip install --quiet --exclude-newer 2026-11-28 \
    torch==2.13.0 transformers==5.23.0 accelerate==1.15.0 numpy==2.4.6

environment/bin/python - <<'PYTHON'
import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

print("transformers", transformers.__version__, "torch", torch.__version__.split("+")[0])
transformers.utils.logging.disable_progress_bar()
config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4)
model = LlamaForCausalLM(config)
given = model.config.use_cache
trainer = Trainer(model=model, args=TrainingArguments(output_dir="run", use_cpu=True, report_to=[]))
trainer.save_model("saved")
saved = json.loads(Path("saved/config.json").read_text())["use_cache"]
print("use_cache of the given config:", given, "of the saved one:", saved)


def tokens_of_each_pass() -> list[int]:
    """Count the tokens that each pass of `generate` calculates."""
    loaded = AutoModelForCausalLM.from_pretrained("saved")
    counts = []
    loaded.model.register_forward_pre_hook(
        lambda module, args, kwargs: counts.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    loaded.generate(torch.tensor([[1, 5, 7]]), do_sample=False, max_new_tokens=5, min_new_tokens=5)
    return counts


beside = tokens_of_each_pass()
Path("saved/generation_config.json").unlink()
alone = tokens_of_each_pass()
print("tokens of each pass with generation_config.json:   ", beside)
print("tokens of each pass without generation_config.json:", alone)

if (given, saved, beside, alone) != (True, False, [3, 1, 1, 1, 1], [3, 4, 5, 6, 7]):
    sys.exit("changed: the saved config, or what generate makes of it, is another")
PYTHON
