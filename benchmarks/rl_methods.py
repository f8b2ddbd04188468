"""Train by each method of the RL stage from the same instruct model, with several seeds, and print what they solve.

python benchmarks/rl_methods.py                          # seeds 1 to 10, one after the other
python benchmarks/rl_methods.py --seeds 3 --only rl dpo
python benchmarks/rl_methods.py --rehearse               # a few steps with one seed

The share of held-out sums that the model solves, for the tables of stages/rl/README.md. Each seed has a separate store,
in which `rl` makes the teacher of `distill`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TWO = "grpo.updates_per_step=2"
"""With a single update, the ratios are 1, and losses differ in their means only."""
METHODS: dict[str, tuple[str, ...]] = {
    "rl": ("-c", "tiny"),
    "dpo": ("-c", "dpo_tiny"),
    "distill": ("-c", "distill_tiny"),
    "reward": (
        "-c",
        "tiny",
        "run.reward_model=super3-reward-model:latest",
        "rewards=[{name: model, weight: 1.0}]",
        "grpo.use_leave_one_out_baseline=false",
    ),
    "dapo": ("-c", "tiny", TWO),
    "grpo": ("-c", "tiny", TWO, "grpo.loss_type=grpo"),
    "gspo": ("-c", "tiny", TWO, "grpo.loss_type=grpo", "grpo.sequence_level_importance_ratios=true"),
    "dr_grpo": ("-c", "tiny", TWO, "grpo.loss_type=dr_grpo", "grpo.normalize_rewards=false"),
    "cispo": ("-c", "tiny", TWO, "grpo.loss_type=cispo", "grpo.ratio_clip_min=1"),
    "sapo": ("-c", "tiny", TWO, "grpo.loss_type=sapo"),
    "dynamic": ("-c", "tiny", "grpo.use_dynamic_sampling=true", "grpo.dynamic_sampling_max_gen_batches=40"),
}
BEFORE = {"reward": ("-c", "reward_tiny")}
"""What is made first for a method."""
SHORT = ("train.train_iters=2", "train.eval_interval=1", "checkpoint.save_interval=1")
REHEARSAL = {
    "pretrain": SHORT,
    "sft": SHORT,
    "rl": (*SHORT, "grpo.max_new_tokens=8"),
    "eval": ("data_prep.synthetic_problems=24", "evaluation.max_new_tokens=8"),
}


def main() -> None:
    """Run and print."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--seeds", type=int, default=10, help="how many, from 1 on")
    words.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS), help="these methods")
    words.add_argument("--rehearse", action="store_true", help="a few steps, to see that it runs")
    asked = words.parse_args()
    seeds = range(1, 2 if asked.rehearse else asked.seeds + 1)
    solved: dict[str, list[float]] = {name: [] for name in ("sft", *asked.only)}
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="rl-methods-") as home:
            for stage in ("pretrain", "sft"):
                run(home, stage, seed, ("-c", "tiny"), rehearse=asked.rehearse)
            for name in asked.only:
                if name in BEFORE:
                    run(home, "rl", seed, BEFORE[name], rehearse=asked.rehearse)
                    print(f"seed {seed}: {told_apart(Path(home))}", flush=True)
                run(home, "rl", seed, METHODS[name], rehearse=asked.rehearse)
                run(home, "eval", seed, ("-c", "tiny", "-t", "sums", "run.base=null"), rehearse=asked.rehearse)
                scores = sums(Path(home))
                solved[name].append(scores["rl"])
            solved["sft"].append(scores["sft"])
        print(f"seed {seed}: " + ", ".join(f"{name} {shares[-1]:.1%}" for name, shares in solved.items()), flush=True)
    for name, shares in solved.items():
        print(f"| {name} | {statistics.median(shares):.0%} ({min(shares):.0%} to {max(shares):.0%}) |")


def run(
    home: str, stage: str, seed: int, words: tuple[str, ...], *, rehearse: bool, family: str = "super3"
) -> None:  # fmt: skip
    """Run a stage in a store; ends the program with the stage's output if it fails."""
    command = [sys.executable, "-m", "nemotron_app.main", family, stage, *words, f"run.seed={seed}"]
    command += REHEARSAL[stage] if rehearse else ()
    done = subprocess.run(command, env=os.environ | {"NEMOTRON_HOME": home}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")


def told_apart(home: Path) -> str:
    """Shares of the held-out pairs that the reward model tells apart before and after its training."""
    (file,) = (home / "artifacts/super3-reward-model").glob("v*/manifest.json")
    metrics = json.loads(file.read_text(encoding="utf-8"))["metrics"]
    before, after = metrics["valid_pair_accuracy_before"], metrics["valid_pair_accuracy"]
    return f"pairs told apart: {before:.1%} by the random score, {after:.1%} by the reward model"


def sums(home: Path) -> dict[str, float]:
    """Share of the sums that each model solves, in the newest results."""
    newest = max((home / "artifacts/super3-eval-results").glob("v*"), key=lambda path: int(path.name[1:]))
    scores = json.loads((newest / "results.json").read_text(encoding="utf-8"))["scores"]
    return {entry["model"]: entry["value"] for entry in scores if entry["task"] == "sums"}


if __name__ == "__main__":
    main()
