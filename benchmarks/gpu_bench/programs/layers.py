"""Find where generating and training differ: the outputs of every module for the same tokens, both ways.

    python benchmarks/gpu_bench/programs/layers.py result.json --dtype float32

A small model with random weights computes the same tokens in one pass as a training does, and one at a time with a
cache as generating does. The first module that differs is named, the relative difference is given for every block,
and so are tokens that go to other experts. TRITON_F32_DEFAULT=ieee makes the scan multiply in float32 and not TF32.
"""

import argparse
import json
import sys
import time
from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[2]))
from gpu_bench.measure import compile_side_by_side, wait_for_turn

PROMPT = 16
"""Tokens that generating computes in one pass."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("--architecture", required=True)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="bfloat16: mixed precision")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=96)
    options = parser.parse_args()
    from gpu_bench.programs.answers import load

    if torch.cuda.is_available():
        compile_side_by_side()
    wait_for_turn()
    model = load(options.architecture)
    found = compare(model, options)
    options.result.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


def compare(model: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Both ways over the same tokens, and the differences of all modules after the prompt."""
    device = model.device.type
    ids = torch.randint(3, 500, (options.rows, options.length), generator=torch.Generator().manual_seed(0)).to(device)
    mixed: AbstractContextManager[Any] = (
        torch.autocast(device, torch.bfloat16) if options.dtype == "bfloat16" else nullcontext()
    )
    with torch.no_grad(), mixed:
        trained, whole_seconds = outputs_of(model, ids, [ids.shape[1]])
        generated, steps_seconds = outputs_of(model, ids, [PROMPT] + [1] * (ids.shape[1] - PROMPT))
        fused, _ = outputs_of(model.train(), ids, [ids.shape[1]])  # Mamba's mixer is one kernel in training
    differences = {
        name: relative(generated[name][:, PROMPT:], one[:, PROMPT:])
        for name, one in trained.items()
        if name in generated and generated[name].shape == one.shape and one.is_floating_point()
    }
    routed = [name for name in trained if name.endswith(".gate") and not trained[name].is_floating_point()]
    flips = {
        name: (trained[name][:, PROMPT:].sort(-1)[0] != generated[name][:, PROMPT:].sort(-1)[0]).any(-1).float().mean()
        for name in routed
    }
    first = next(((name, value) for name, value in differences.items() if value), None)
    logps = [
        one["lm_head"][:, PROMPT - 1 : -1].float().log_softmax(-1).gather(2, ids[:, PROMPT:, None])
        for one in (trained, generated)
    ]
    return {
        "first": first,
        "blocks": {name: value for name, value in differences.items() if name.rpartition(".")[0] == "model.layers"},
        "blocks_fused": {
            name: relative(generated[name][:, PROMPT:], one[:, PROMPT:])
            for name, one in fused.items()
            if name.rpartition(".")[0] == "model.layers"
        },
        "modules": dict(sorted(differences.items(), key=lambda one: -one[1])[:12]),
        "tokens_to_other_experts": {name: round(float(share), 5) for name, share in flips.items()},
        "logprob": {"mean": float((logps[0] - logps[1]).abs().mean()), "max": float((logps[0] - logps[1]).abs().max())},
        "seconds": {"one pass": round(whole_seconds, 3), "token by token": round(steps_seconds, 3)},
    }


def outputs_of(model: Any, ids: Tensor, pieces: list[int]) -> tuple[dict[str, Tensor], float]:
    """What every module gave for the tokens, in the order of their computation, (rows, tokens, ...), and the time."""
    kept: dict[str, list[Tensor]] = defaultdict(list)
    rows = len(ids)

    def keep(name: str) -> Any:
        def hook(_: Any, __: Any, made: Any) -> None:
            made = made[-1] if name.endswith(".gate") else made[0] if isinstance(made, tuple) else made
            if isinstance(made, Tensor) and made.numel() % rows == 0 and made.dim() > 1:
                made = made if made.dim() > 2 else made.view(rows, -1, made.shape[-1])
                kept[name].append(made.detach())

        return hook

    parts = (keep(name) if name else None for name, _ in model.named_modules())
    modules = [module for _, module in model.named_modules()]
    handles = [module.register_forward_hook(hook) for module, hook in zip(modules, parts, strict=True) if hook]
    cache, began = None, time.perf_counter()
    for piece in ids.split(pieces, dim=1):
        made = model(input_ids=piece, past_key_values=cache, use_cache=len(pieces) > 1)
        cache = made.past_key_values
    if ids.is_cuda:
        torch.cuda.synchronize()
    took = time.perf_counter() - began
    for handle in handles:
        handle.remove()
    return {name: torch.cat(parts, dim=1) for name, parts in kept.items() if same_width(parts)}, took


def same_width(parts: list[Tensor]) -> bool:
    return all(part.shape[0] == parts[0].shape[0] and part.shape[2:] == parts[0].shape[2:] for part in parts)


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-12))


if __name__ == "__main__":
    sys.exit(main())
