"""Run a stage's training command, measure its steps, and end when they are measured.

    python benchmarks/gpu_bench/programs/measured_stage.py result.json --steps 20 -- sft -c tiny engine=automodel

No checkpoint and no model is written: the process ends after the last step that is measured.
"""

import argparse
import importlib
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[2]))
from gpu_bench.measure import Measure, compile_side_by_side, wait_for_turn


def main() -> int:
    """Run the stage; returns its exit code if it ends before it is measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("--warm-up", type=int, default=5, help="steps before those that are timed")
    parser.add_argument("--steps", type=int, default=20, help="steps that are timed")
    parser.add_argument("--profiled", type=int, default=3, help="steps that are profiled after those")
    parser.add_argument("--weights-on-device", action="store_true", help="draw random weights there, in bfloat16")
    parser.add_argument("stage", nargs="+", help="sft -c tiny ...")
    options = parser.parse_args()
    if torch.cuda.is_available():
        compile_side_by_side()
    take_turns()
    measure = Measure(options.result, options.warm_up, options.steps, options.profiled)
    stage, *words = options.stage
    if options.weights_on_device:
        draw_on_device()
    if stage == "rl":
        time_sampling(measure)
    if os.environ.get("GPU_BENCH_MASK"):  # to see what attention by documents is worth
        module = importlib.import_module("stages.sft.engines.transformers.train")
        module.attend_by_document = lambda model, collate: collate
    return importlib.import_module(f"stages.{stage}.train").main(words)


def take_turns() -> None:
    """Load at once, and train when it is this program's turn."""
    from nemotron_shared.tracking.run import Run

    watched = Run.watched

    @contextmanager
    def in_turn(self: Any, **how: Any) -> Any:
        wait_for_turn()
        with watched(self, **how):
            yield

    Run.watched = in_turn


def draw_on_device() -> None:
    """Make a random model where it is trained and in the type of frozen weights, instead of on the host in float32."""
    from nemotron_engines.modeling import build

    def whole(task: Any, tokenizer: Path) -> Any:
        wait_for_turn()
        began = time.perf_counter()
        config = build.random_config(task.config.model, build.load_tokenizer(tokenizer))
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model = build.random_of(config, task.config.run.seed, task.config.engine, torch.bfloat16)
        print(f"{model.num_parameters():,} weights drawn in {time.perf_counter() - began:.0f} s", flush=True)
        return model

    build._whole = whole


def time_sampling(measure: Measure) -> None:
    """Add the time of sampling to the figures of GRPO's steps."""
    from stages.rl.engines.trl.sampling import SamplingTrainer

    sample, took = SamplingTrainer._generate_single_turn, []

    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        synchronize()
        began = time.perf_counter()
        found = sample(self, *args, **kwargs)
        synchronize()
        took.append(time.perf_counter() - began)
        measure.figures["sampling_ms"] = [round(1e3 * one, 1) for one in took]
        measure.figures["sampled_tokens"] = sum(len(one) for one in found[1])
        return found

    SamplingTrainer._generate_single_turn = timed


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
