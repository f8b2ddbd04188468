"""Steps of GRPO in the environment `drawers`: our loop, and TRL's own with an `environment_factory`.

Wall time of a step after the first, 64 episodes each, on the same model and kind of server; a step of ours is sampling,
the environment and training, without validation. The model is that of `pretrain` and `sft -c drawers`, a few minutes of
work, or of the store that `--store` names.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from prep_bench.process_tree import run_measured
from prep_bench.settings import REPOSITORY

from against_bench.training import ENVIRONMENT, nemotron
from against_bench.trl_environment import GENERATIONS, PROMPTS, Step, trls
from nemotron_shared.artifacts import Store

PARTS = ("environment/sampling_seconds", "environment/seconds", "environment/training_seconds")
SHORT = ("train.train_iters=4", "train.eval_interval=4", "checkpoint.save_interval=4")
"""Settings of a rehearsal."""


def environments(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure and print the section."""
    lines: list[dict[str, Any]] = []
    print("| loop | seconds a step | environment's part | mean reward |\n|---|--:|--:|--:|", flush=True)
    with tempfile.TemporaryDirectory(prefix="against-") as name:
        folder, steps = Path(name), 2 if options.rehearse else 1 + options.rounds
        home = options.store or taught(folder / "home", rehearse=options.rehearse)
        model = Store(home).resolve("super3-sft-model:latest").path
        for loop, found in (("ours", ours(model, steps, folder / "ours")), ("TRL", trls(model, steps, folder / "trl"))):
            seconds, waited, rewards = zip(*found[1:], strict=True)
            lines.append({"loop": loop, "seconds": seconds, "environment": waited, "reward": rewards})
            cells = (f"{statistics.median(values):.2f}" for values in (seconds, waited, rewards))
            print(f"| {loop} | {' | '.join(cells)} |", flush=True)
    mine, theirs = (statistics.median(line["seconds"]) for line in lines)
    print(f"\nTRL's step takes {theirs / mine:.2f} times as long as ours.", flush=True)
    return lines


def taught(home: Path, *, rehearse: bool) -> Path:
    """A store with an SFT model of `-c drawers`."""
    short = SHORT if rehearse else ()
    for stage, extra in (("pretrain", ()), ("sft", ("data_prep.synthetic_chats=60",) if rehearse else ())):
        run_measured(nemotron(home, stage, "-c", "drawers", *short, *extra), ENVIRONMENT, REPOSITORY)
    return home


def ours(model: Path, steps: int, home: Path) -> list[Step]:
    """The steps of `nemotron super3 rl -c drawers`."""
    settings = (f"run.model={model}", f"train.train_iters={steps}", f"train.eval_interval={steps}",
                "train.eval_rows=1", f"checkpoint.save_interval={steps}", "scheduler.lr_warmup_iters=0",
                f"grpo.num_prompts_per_step={PROMPTS}", f"grpo.num_generations_per_prompt={GENERATIONS}")  # fmt: skip
    run_measured(nemotron(home, "rl", "-c", "drawers", *settings), ENVIRONMENT, REPOSITORY)
    lines = (home / "artifacts/super3-rl-model/v1/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    logged = [entry for entry in map(json.loads, lines) if PARTS[0] in entry]
    return [Step(sum(entry[name] for name in PARTS), entry[PARTS[1]], entry["reward"]) for entry in logged]
