#!/usr/bin/env bash
# The guess: a function that draws random numbers gives each row its own number in `Dataset.map`, with one process or
# with `num_proc=4`.
#
# What happens: the processes are forked, and each starts with the same state of numpy's global generator. Row i of one
# shard gets the number of row i of every other shard. Python's own `random` is seeded anew in each process and does
# not repeat, so a look at one of the two does not show it.
#
# Why it matters: masks, noise, shuffled choices or prompts drawn from templates repeat as often as there are
# processes, and a data set of 4,000,000 draws has 1,000,000. Draw from a generator that is made from the row's index
# (`with_indices=True`).
#
# Versions: datasets 5.2.0, numpy 2.4.6. Date: 2026-11-29.
#
# Seen:
#   datasets 5.2.0 numpy 2.4.6
#   different numbers in 400 rows:
#     numpy:           400 with 1 process, 100 with 4
#     Python's random: 400 with 4
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
uv venv --quiet environment
export VIRTUAL_ENV="$folder/environment" HF_HOME="$folder/home"
uv pip install --quiet --exclude-newer 2026-11-28 datasets==5.2.0 pyarrow==26.0.1 numpy==2.4.6

cat > program.py <<'PYTHON'
import random
import sys

import datasets
import numpy
from datasets import Dataset


def draw(row: dict) -> dict:
    return {"numpy": float(numpy.random.random()), "random": random.random()}


if __name__ == "__main__":
    print("datasets", datasets.__version__, "numpy", numpy.__version__)
    datasets.disable_progress_bars()
    datasets.disable_caching()
    rows = Dataset.from_dict({"row": list(range(400))})
    alone, four = rows.map(draw, num_proc=1), rows.map(draw, num_proc=4)
    found = [len(set(column)) for column in (alone["numpy"], four["numpy"], four["random"])]
    print("different numbers in 400 rows:")
    print("  numpy:          ", found[0], "with 1 process,", found[1], "with 4")
    print("  Python's random:", found[2], "with 4")
    if found != [400, 100, 400]:
        sys.exit("changed: the processes of map draw in another way")
PYTHON
environment/bin/python program.py
