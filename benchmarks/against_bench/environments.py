"""Steps of GRPO in the environment `drawers`: our loop, and TRL's own with an `environment_factory`.

Wall time of a step after the first, 64 episodes each, by environment_loops.py beside this one. The model comes from
`pretrain` and `sft -c drawers`, a few minutes of work.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from environment_loops import ours, trls
from prep_bench.process_tree import run_measured
from prep_bench.settings import REPOSITORY

from against_bench.training import ENVIRONMENT, nemotron

SHORT = ("train.train_iters=4", "train.eval_interval=4", "checkpoint.save_interval=4")
"""Settings of a rehearsal."""


def environments(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure and print the section."""
    lines: list[dict[str, Any]] = []
    print("| loop | seconds a step | environment's part | mean reward |\n|---|--:|--:|--:|", flush=True)
    with tempfile.TemporaryDirectory(prefix="against-") as name:
        folder, short = Path(name), SHORT if options.rehearse else ()
        for stage, extra in (("pretrain", ()), ("sft", ("data_prep.synthetic_chats=60",) if options.rehearse else ())):
            words = [stage, "-c", "drawers", *short, *extra]
            run_measured(nemotron(folder / "home", *words), ENVIRONMENT, REPOSITORY)
        model, steps = folder / "home/artifacts/super3-sft-model/v1", 2 if options.rehearse else 6
        for loop, found in (("ours", ours(model, steps, folder / "ours")), ("TRL", trls(model, steps, folder / "trl"))):
            seconds, waited, rewards = zip(*found[1:], strict=True)
            lines.append({"loop": loop, "seconds": seconds, "environment": waited, "reward": rewards})
            cells = (f"{statistics.median(values):.2f}" for values in (seconds, waited, rewards))
            print(f"| {loop} | {' | '.join(cells)} |", flush=True)
    return lines
