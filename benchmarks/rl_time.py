"""Measure steps of reinforcement learning on one core, and compare them with what a dry run estimates.

OMP_NUM_THREADS=1 python benchmarks/rl_time.py              # models, methods and sizes: about five minutes
OMP_NUM_THREADS=1 python benchmarks/rl_time.py --only llama
OMP_NUM_THREADS=1 python benchmarks/rl_time.py --rehearse   # one model, one size

CPU time of the process, which other work on the machine hardly changes: the median of three steps. The coefficients in
`nemotron_engines/estimate/speed.py` are fitted to the models marked so, and the others judge them. Models have random
weights, whose completions are nearly always as long as allowed.
"""

import argparse
import contextlib
import io
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent / "tests"))

import zoo
from transformers import Trainer

from stages.rl import train

TWINS = ("nano3_tiny", "super3_tiny")
KINDS = {
    "llama": zoo.MATRIX["llama"],
    "llama, width 64": replace(zoo.MATRIX["llama"], more={"hidden_size": 64, "intermediate_size": 256}),
    "llama, width 256": replace(
        zoo.MATRIX["llama"], more={"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6}
    ),
    "mamba2": zoo.MATRIX["mamba2"],
    "qwen3, width 256": replace(
        zoo.ZOO["qwen3"],
        more={"head_dim": 32, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4},
    ),
    "qwen3_moe": zoo.MATRIX["qwen3_moe"],
    "gemma3": zoo.MATRIX["gemma3"],
    "granitemoehybrid": zoo.MATRIX["granitemoehybrid"],
}
FITTED = ("nano3_tiny", "llama", "llama, width 256", "mamba2")
SIZES = ((4, 4, 16), (4, 16, 64), (8, 8, 32), (2, 8, 128))
"""Prompts of a step, completions of each, and their tokens."""
STEPS = 4
COMMON = (
    "--rehearsed", f"train.train_iters={STEPS}", "train.eval_interval=100", "train.eval_rows=1",
    "checkpoint.save_interval=100", "checkpoint.keep_last_state=false", "logger.tensorboard=false",
    "logger.completions=0", "data_prep.synthetic_problems=100",
)  # fmt: skip
REWARDS = "rewards=[{name: well_formed, weight: 1.0}]"


def main() -> None:
    """Measure and print."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--only", nargs="+", choices=[*TWINS, *KINDS], default=[*TWINS, *KINDS], help="these models")
    words.add_argument("--rehearse", action="store_true", help="one model, one size")
    asked = words.parse_args()
    names, sizes = (["llama"], SIZES[:1]) if asked.rehearse else (asked.only, SIZES)
    print("| model | fitted to | step | measured | estimated | ratio |\n|---|---|---|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NEMOTRON_HOME"] = f"{folder}/home"
        for name in names:
            model = given(name, Path(folder) / name.replace(", ", "_").replace(" ", "_"))
            for prompts, completions, tokens in sizes:
                size = (
                    f"grpo.num_prompts_per_step={prompts}", f"grpo.num_generations_per_prompt={completions}",
                    f"grpo.max_new_tokens={tokens}",
                )  # fmt: skip
                step = f"GRPO, {prompts} x {completions} completions of {tokens} tokens"
                show(name, step, ("-c", "tiny", *COMMON, REWARDS, *size, *model))
            show(name, "DPO, 32 pairs", ("-c", "dpo_tiny", *COMMON, *model))


def given(name: str, folder: Path) -> tuple[str, ...]:
    """The words that name a model: an architecture of ours, or a folder with random weights."""
    if name in TWINS:
        return (f"model.architecture={name}",)
    return (f"run.model={zoo.write_kind(KINDS[name], folder)}",)


def show(name: str, step: str, words: tuple[str, ...]) -> None:
    """One row of the table; the data is prepared by the training, and read by the estimate."""
    measured, found = seconds_of_a_step(words), estimate(words)
    fitted = "yes" if name in FITTED and step.startswith("GRPO") else ""
    print(
        f"| {name} | {fitted} | {step} | {measured:.2f} s | {found:.2f} s | {found / measured:.2f} |",
        flush=True,
    )


def seconds_of_a_step(words: tuple[str, ...]) -> float:
    """CPU time of a step of a real training, without its first."""
    moments, log = [], Trainer.log

    def noted(self: Trainer, logs: dict[str, float], *more: Any, **named: Any) -> None:
        if "loss" in logs:
            moments.append(time.process_time())
        log(self, logs, *more, **named)

    Trainer.log = noted
    try:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            code = train.main([*words, "--force"])
    finally:
        Trainer.log = log
    if code:
        raise SystemExit(said.getvalue())
    return statistics.median(after - before for before, after in pairwise(moments))


def estimate(words: tuple[str, ...]) -> float:
    """What a dry run says of a step."""
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.redirect_stderr(io.StringIO()):
        train.main([*words, "--force", "--dry-run", "--json"])
    return sum(json.loads(shown.getvalue())["estimate"]["step_seconds"].values())


if __name__ == "__main__":
    main()
