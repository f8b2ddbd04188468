"""GRPO steps of TRL on a small Super3 with random weights, with completions from vLLM in the same process.

    python benchmarks/gpu_bench/programs/grpo_step.py result.json --folder /tmp/grpo [--generator transformers]

Writes the last step's log entries, and the wall time of the steps. Heads are wider than those of the tiny model, since
attention kernels for GPUs do not support heads of 16.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FIELDS = {"hidden_size": 256, "head_dim": 64, "mamba_head_dim": 64, "n_groups": 2, "ssm_state_size": 64}
PROMPTS = ("What is 2 + 3?", "Name a goat.", "Count to four.", "Where does Mira live?")
# TRL starts vLLM as one member of a process group, for which torchrun would set these variables.
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29531"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("--folder", type=Path, required=True, help="where the model is written")
    parser.add_argument("--generator", choices=("vllm", "transformers"), default="vllm")
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    if options.generator == "vllm":
        os.environ.update({name: os.environ.get(name, value) for name, value in ALONE.items()})
    found = train(options)
    options.result.write_text(json.dumps(found), encoding="utf-8")
    return 0


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Make the model folder, train, and return the last step's figures."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = make_model(options.folder / "model")
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in PROMPTS]
    trainer = GRPOTrainer(
        model=model,
        args=GRPOConfig(**settings(options)),
        reward_funcs=[length_reward],
        train_dataset=Dataset.from_list(rows * options.steps),
        processing_class=tokenizer,
    )
    start = time.monotonic()
    trainer.train()
    logged = {k: v for entry in trainer.state.log_history for k, v in entry.items() if isinstance(v, int | float)}
    names = ("loss", "reward", "reward_std", "grad_norm", "completions/mean_length")
    return {
        "steps": trainer.state.global_step,
        "seconds": round(time.monotonic() - start, 3),
        **{name: logged[name] for name in names if name in logged},
    }


def make_model(folder: Path) -> tuple[Any, Any]:
    """Save a model with random weights as a Hugging Face folder, which vLLM reads too, and load it again."""
    from nemotron_data.tokenizers.folder import provide_tokenizer
    from nemotron_engines.modeling.build import load_model, load_tokenizer, random_model, save_model
    from nemotron_shared.config.schema import ModelSection

    provide_tokenizer("tiny", folder.with_name("tokenizer"))
    tokenizer = load_tokenizer(folder.with_name("tokenizer"))
    engine = SimpleNamespace(attn_implementation="sdpa", allow_reference_kernels=True)
    section = ModelSection(architecture="super3_tiny", overrides=FIELDS)
    save_model(random_model(section, tokenizer, 0, engine), folder.with_name("tokenizer"), folder)
    return load_model(folder, engine), tokenizer


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """TRL's settings: one prompt group after the other, four completions each."""
    import torch

    shared = {
        "output_dir": str(options.folder / "trainer"),
        "max_steps": options.steps,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 32,
        "learning_rate": 1e-4,
        "bf16": torch.cuda.is_available(),
        "use_cpu": not torch.cuda.is_available(),
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "seed": 0,
    }
    if options.generator == "transformers":
        return shared
    share = {"vllm_gpu_memory_utilization": 0.3, "vllm_max_model_length": 512}
    return shared | share | {"use_vllm": True, "vllm_mode": "colocate"}


def length_reward(completions: list[Any], **_: Any) -> list[float]:
    """Longer is better, so that random weights get varied rewards."""
    return [len(completion[-1]["content"]) / 100 for completion in completions]


if __name__ == "__main__":
    sys.exit(main())
