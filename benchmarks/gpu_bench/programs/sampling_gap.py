"""Measure the gap between log-probabilities of generation and of a training pass, with this device's kernels.

    python benchmarks/gpu_bench/programs/sampling_gap.py result.json --folder /tmp/sampling --tokens 20000

A small Super3 with random weights (or --model FOLDER) continues prompts of random tokens, in float32 and in mixed
precision, token by token with a cache. Then one pass over the same tokens, padded on the left, computes their
log-probabilities again. Policy gradients assume that the two are equal.
"""

import argparse
import json
import random
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

LONGEST_PROMPT = 120
DTYPES = ("float32", "bfloat16")


@dataclass
class Gap:
    """Differences between the two log-probabilities of a token, in nats; ratios of probabilities of whole answers."""

    differences: list[Tensor] = field(default_factory=list)
    """One (answers, new tokens) tensor for each batch: training pass minus generation."""

    def figures(self) -> dict[str, Any]:
        """Counts and extremes over all batches."""
        apart = torch.cat(self.differences)
        ratios = apart.sum(dim=1).exp()
        return {
            "tokens": apart.numel(),
            "differing": int((apart != 0).sum()),
            "mean": apart.abs().mean().item(),
            "largest": apart.abs().max().item(),
            "answers": len(ratios),
            "answer_ratios": [ratios.min().item(), ratios.max().item()],
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("--folder", type=Path, required=True, help="where a model is written, if none is named")
    parser.add_argument("--model", type=Path, help="folder of a model (default: a small one with random weights)")
    parser.add_argument("--tokens", type=int, default=20_000, help="to sample, in each precision")
    parser.add_argument("--answers", type=int, default=128, help="of a batch")
    parser.add_argument("--length", type=int, default=48, help="new tokens of an answer")
    options = parser.parse_args()
    model = load(options)
    found = {dtype: measure(model, dtype, options).figures() for dtype in DTYPES}
    options.result.write_text(json.dumps(found), encoding="utf-8")
    return 0


def load(options: argparse.Namespace) -> Any:
    """The model, on the GPU if there is one."""
    from nemotron_engines.modeling.build import load_model

    engine = SimpleNamespace(attn_implementation="sdpa", allow_reference_kernels=True)
    if options.model:
        model = load_model(options.model, engine)
    else:
        from gpu_bench.programs.grpo_step import make_model

        model, _ = make_model(options.folder / "model")
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def measure(model: Any, dtype: str, options: argparse.Namespace) -> Gap:
    """Run batches until there are enough tokens, with the same prompts and draws each time."""
    torch.manual_seed(0)
    pick, gap, tokens = random.Random(0), Gap(), 0
    while tokens < options.tokens:
        prompts, mask = draw_prompts(pick, options.answers, model.config.vocab_size, model.device)
        with torch.no_grad(), precision(model.device.type, dtype):
            difference = gap_of_batch(model, prompts, mask, options.length)
        gap.differences.append(difference.cpu())
        tokens += difference.numel()
    return gap


def draw_prompts(pick: random.Random, count: int, vocabulary: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and mask (count, longest), padded on the left."""
    rows = [[pick.randrange(vocabulary) for _ in range(pick.randint(1, LONGEST_PROMPT))] for _ in range(count)]
    longest = max(len(row) for row in rows)
    ids = [[0] * (longest - len(row)) + row for row in rows]
    mask = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def gap_of_batch(model: Any, prompts: Tensor, mask: Tensor, length: int) -> Tensor:
    """Log-probabilities of the training pass minus those of generation, (answers, length), in float64."""
    made = model.generate(
        prompts, attention_mask=mask, max_new_tokens=length, do_sample=True, top_k=0, top_p=1.0, temperature=1.0,
        eos_token_id=None, pad_token_id=0, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    new = made.sequences[:, prompts.shape[1] :]
    whole = torch.cat([mask, torch.ones_like(new)], dim=1)
    logits = model(input_ids=made.sequences, attention_mask=whole, use_cache=False).logits[:, prompts.shape[1] - 1 : -1]
    return logps(logits, new) - logps(torch.stack(made.logits, dim=1), new)


def logps(logits: Tensor, chosen: Tensor) -> Tensor:
    """Log-probabilities of the chosen tokens (batch, length), from logits (batch, length, vocabulary)."""
    return logits.float().log_softmax(-1).gather(2, chosen[..., None])[..., 0].double()


def precision(device: str, dtype: str) -> AbstractContextManager[Any]:
    """Mixed precision for bfloat16, as in the stages."""
    return torch.autocast(device, torch.bfloat16) if dtype == "bfloat16" else nullcontext()


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    sys.exit(main())
