"""Compare our work with that of other programs, side by side on one CPU thread, and print a table for each section.

    uv run python benchmarks/against.py                    # every section
    uv run python benchmarks/against.py --only answers --rounds 7 --compiled

    answers        `chat`, `generate` and `serve` against transformers' generate
    training       `nemotron sft` against TRL's SFTTrainer: speed, start and memory
    data           `nemotron data prep` against gigatoken's encoding and datasets.map
    environments   GRPO in an environment against TRL's environment_factory

Each program runs in a separate process. Answers and trainings take turns, and are measured in CPU time, so that other
programs on the machine have little influence; their ratios are medians of those within a round. Data and environments
are measured in wall time, so the machine should have nothing else to do, and environments in one round. Peers are the
versions of `uv.lock`, each with the best settings that we found, which the section's module names. A comparison that we
lose is printed, too.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from against_bench.answers import answers
from against_bench.data import data
from against_bench.environments import environments
from against_bench.training import training

SECTIONS: dict[str, Callable[[argparse.Namespace], list[dict[str, Any]]]] = {
    "answers": answers, "training": training, "data": data, "environments": environments,
}  # fmt: skip
NEW = 256


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=SECTIONS, action="append", help="this section; may be repeated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new", type=int, default=NEW, help="tokens of an answer")
    parser.add_argument("--compiled", action="store_true", help="also against torch.compile; needs a C++ compiler")
    parser.add_argument(
        "--work", type=Path, metavar="FOLDER", help="keep the corpus of the data here for the next time"
    )
    parser.add_argument(
        "--store", type=Path, metavar="FOLDER", help="a store with an SFT model of `-c drawers`, else made"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="the figures of each round")
    parser.add_argument("--rehearse", action="store_true", help="very little of everything, for the tests")
    options = parser.parse_args()
    found = {}
    for name in options.only or SECTIONS:
        print(f"\n{name}\n", flush=True)
        found[name] = SECTIONS[name](options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
