#!/usr/bin/env bash
# The guess: the log-probabilities of tokens that a model samples with its cache are those of one pass over the same
# tokens, but for rounding (about 1e-6 nats in float32).
#
# What happens: Zamba2 bounds its time steps from below by `time_step_min` of the config in a pass over many tokens,
# and does not bound them in a step with the cache. From the second generated token on, the two differ wherever a time
# step is below the bound; the first comes from the pass over the prompt and is equal. How much depends on the weights
# and the bound.
#
# Why it matters: RL samples with the cache and trains without. The ratio of the policy to itself is then not 1 before
# the first update, and a filter on that ratio drops tokens for no reason.
#
# Versions: transformers 5.23.0, torch 2.13.0, without mamba-ssm. Date: 2026-11-28.
#
# Seen:
#   transformers 5.23.0 torch 2.13.0
#   time_step_min 1e-09: first token 9.5e-07 nats, the others 1.4e-06
#   time_step_min 0.001: first token 4.8e-07 nats, the others 6.9e-05
#   time_step_min 0.1: first token 9.5e-07 nats, the others 5.7e-03
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
from transformers import Zamba2Config, Zamba2ForCausalLM

print("transformers", transformers.__version__, "torch", torch.__version__.split("+")[0])
transformers.utils.logging.set_verbosity_error()  # it says that it runs without mamba-ssm


def differences(time_step_min: float) -> tuple[float, float]:
    """Largest difference of log-probabilities, in nats: of the first generated token, and of the other seven."""
    torch.manual_seed(0)
    config = Zamba2Config(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        layers_block_type=["mamba", "hybrid", "mamba"],
        num_attention_heads=4,
        mamba_d_state=16,
        mamba_headdim=8,
        n_mamba_heads=8,
        num_mem_blocks=1,
        chunk_size=16,
        time_step_min=time_step_min,
    )
    model = Zamba2ForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("dt_bias"):
                parameter.fill_(-7)  # time steps near 0.001, whatever the bound
            elif parameter.dim() > 1:
                parameter.mul_(5)  # random weights are small, and so is all that they do
        prompt = torch.randint(3, 128, (1, 64))
        sampled = model.generate(
            prompt,
            do_sample=False,
            max_new_tokens=8,
            min_new_tokens=8,
            output_logits=True,
            return_dict_in_generate=True,
        )
        with_cache = torch.stack(sampled.logits, 1).log_softmax(-1)
        one_pass = model(sampled.sequences, use_cache=False).logits[:, -9:-1].log_softmax(-1)
    each = (with_cache - one_pass).abs().amax((0, 2))
    return each[0].item(), each[1:].max().item()


found = {bound: differences(bound) for bound in (1e-9, 1e-3, 1e-1)}
for bound, (first, others) in found.items():
    print(f"time_step_min {bound:g}: first token {first:.1e} nats, the others {others:.1e}")

if max(found[1e-9]) > 1e-5 or found[1e-1][0] > 1e-5 or found[1e-1][1] < 1e-4:
    sys.exit("changed: a step with the cache keeps the bound, or something else differs")
PYTHON
