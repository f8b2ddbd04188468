"""Measure how many tokens per second a random model answers: `serve`'s batches, and the sampler of GRPO.

python benchmarks/gpu_bench/programs/answers.py result.json --architecture benchmarks/gpu_bench/super3_1b.yaml
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[2]))
from gpu_bench.measure import wait_for_turn

PROMPT = 128


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("--architecture", required=True)
    parser.add_argument("--new", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--serve", type=int, nargs="*", default=[1, 8, 32], help="requests at once")
    parser.add_argument("--sample", type=int, nargs="*", default=[32, 128], help="answers of a batch of GRPO")
    options = parser.parse_args()
    wait_for_turn()
    model = load(options.architecture)
    found: dict[str, Any] = {}
    for size in options.sample:  # float32 weights, computed in bfloat16, as in a training
        found[f"GRPO, mixed precision, {size} at once"] = generated(model, size, options.new)
        options.result.write_text(json.dumps(found, indent=1), encoding="utf-8")
    model = model.to(torch.bfloat16)
    for size in options.serve:
        found[f"serve, bfloat16, {size} at once"] = served(model, size, options.new)
        options.result.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


def load(architecture: str) -> Any:
    """A model with random weights, made on the device."""
    from transformers import NemotronHConfig

    from nemotron_engines.modeling import build
    from nemotron_engines.modeling.architecture import load_architecture
    from nemotron_shared.config.schema import ModelLoadingEngine

    engine = ModelLoadingEngine(
        name="benchmark", device="auto", attn_implementation="sdpa", allow_reference_kernels=True
    )
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model: Any = build.random_of(NemotronHConfig(**load_architecture(architecture, {})), 0, engine)
    return model.eval().requires_grad_(False)


def served(model: Any, size: int, new: int) -> float:
    """Tokens per second of `size` requests at once, prompts included in the time."""
    from nemotron_serving.batch import Batch
    from nemotron_serving.sampling import Sampling

    draw = random.Random(0)
    prompts = [[draw.randrange(3, 500) for _ in range(PROMPT)] for _ in range(size)]
    with Batch(model, eos=set(), size=size) as batch:
        list(batch.generate(prompts[0], Sampling(max_tokens=4)))
        began = time.perf_counter()
        answers = [batch.generate(prompt, Sampling(max_tokens=new)) for prompt in prompts]
        tokens = sum(len(list(answer)) for answer in answers)
        return round(tokens / (time.perf_counter() - began), 1)


def generated(model: Any, size: int, new: int) -> float:
    """Tokens per second of transformers' `generate`, which samples for GRPO where no vLLM does."""
    device = model.device.type
    prompts = torch.randint(3, 500, (size, PROMPT), device=device)

    def run(tokens: int) -> None:
        model.generate(prompts, max_new_tokens=tokens, do_sample=True, top_k=0, eos_token_id=None, pad_token_id=0)

    with torch.autocast(device, torch.bfloat16):
        run(4)
        began = time.perf_counter()
        run(new)
        if device == "cuda":
            torch.cuda.synchronize()
    return round(size * new / (time.perf_counter() - began), 1)


if __name__ == "__main__":
    sys.exit(main())
