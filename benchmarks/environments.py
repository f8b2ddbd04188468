"""Train in an environment with several seeds, and show what was learnt and where a step's time goes.

    python benchmarks/environments.py --write               # drawers, seeds 1 to 10; renews the table in its page
    python benchmarks/environments.py --config drawers_text --seeds 3 --keep /tmp/runs
    python benchmarks/environments.py --rehearse            # a few steps with one seed

Each seed runs the whole pipeline, its own base model included, in a separate store. Success and tool use are means
over held-out episodes, in worlds that no training row has.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from records import code_to_record
from tiny_run import processor

PAGE = Path(__file__).resolve().parents[1] / "docs" / "environments.md"
BEGIN, END = "<!-- seeds -->\n", "<!-- end of seeds -->"
MODELS = ("base", "sft", "rl")
TIMES = ("environment/sampling_seconds", "environment/seconds", "environment/training_seconds")
HEADING = (
    "| seed | base | after SFT | after RL | looked up, after SFT | after RL "
    "| a step: sampling | environment | training | CPU s from the base model |\n|--:|" + "--:|" * 9
)
REHEARSAL = (
    "pretrain.train.train_iters=4", "pretrain.train.eval_interval=2", "pretrain.checkpoint.save_interval=2",
    "sft.train.train_iters=4", "sft.train.eval_interval=2", "sft.checkpoint.save_interval=2",
    "sft.data_prep.synthetic_chats=60", "rl.train.train_iters=2", "rl.train.eval_interval=1", "rl.train.eval_rows=4",
    "rl.checkpoint.save_interval=1", "rl.grpo.num_prompts_per_step=4", "rl.grpo.max_new_tokens=8",
    "eval.evaluation.limit=8", "eval.evaluation.max_new_tokens=8",
)  # fmt: skip


class Record(NamedTuple):
    """One run: of each model the share of held-out episodes that it solved, and of those in which it called tools."""

    seed: int
    solved: tuple[float, ...]
    looked: tuple[float, ...]
    step: tuple[float, ...]
    """Median seconds of a step of RL: sampling, waiting for the environment, training."""
    cpu: float
    """Seconds of all processes after the base model was there."""


def main() -> None:
    """Run, print and write."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--config", default="drawers", help="a config of all stages (default: drawers)")
    words.add_argument("--seeds", type=int, default=10, help="how many, from 1 on")
    words.add_argument("--jobs", type=int, default=1, help="runs at a time")
    words.add_argument("--keep", type=Path, help="keep the stores in this folder")
    once = words.add_mutually_exclusive_group()
    once.add_argument("--write", action="store_true", help="put the table into docs/environments.md")
    once.add_argument("--rehearse", action="store_true", help="a few steps, to see that it runs")
    asked = words.parse_args()
    if asked.write and asked.config != "drawers":
        words.error("--write is for the table of drawers: leave out --config")
    code = code_to_record() if asked.write else ""
    seeds = range(1, 2 if asked.rehearse else asked.seeds + 1)
    with tempfile.TemporaryDirectory(prefix="environments-") as folder, ThreadPoolExecutor(asked.jobs) as at_once:
        stores = [(asked.keep or Path(folder)) / f"{asked.config}-{seed}" for seed in seeds]
        extra = REHEARSAL if asked.rehearse else ()
        rows = []
        print(HEADING)
        for record in at_once.map(lambda seed, store: run(asked.config, seed, store, extra), seeds, stores):
            rows.append(record)
            print(row(record), flush=True)
    print(summary(rows))
    if asked.write:
        write(rows, code, asked.jobs)


def run(config: str, seed: int, home: Path, overrides: tuple[str, ...]) -> Record:
    """Run the pipeline with one seed; a store in which it has run already is only read, and its CPU seconds are few."""
    start, end = ["-m", "nemotron_app.main", "super3"], ["-c", config, f"run.seed={seed}"]
    home.mkdir(parents=True, exist_ok=True)
    base = [one.removeprefix("pretrain.") for one in overrides if one.startswith("pretrain.")]
    seconds = 0.0
    for command in (["pretrain", *end, *base], ["pipeline", *end, *overrides]):
        with (home / "benchmark.log").open("ab") as log:
            environment = os.environ | {"NEMOTRON_HOME": str(home)}
            process = subprocess.Popen([sys.executable, *start, *command], env=environment, stdout=log, stderr=log)
            _, status, used = os.wait4(process.pid, 0)  # the usage of this command's processes alone
        if code := os.waitstatus_to_exitcode(status):
            raise SystemExit(f"seed {seed} ended with exit code {code}: {home / 'benchmark.log'}")
        seconds = used.ru_utime + used.ru_stime
    results = json.loads((home / "artifacts/super3-eval-results/v1/results.json").read_text(encoding="utf-8"))
    scores = {entry["model"]: entry for entry in results["scores"]}
    lines = (home / "artifacts/super3-rl-model/v1/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [entry for entry in map(json.loads, lines) if TIMES[0] in entry]
    return Record(
        seed,
        tuple(scores[model]["value"] for model in MODELS),
        tuple(scores[model]["figures"].get("used_tools", 0.0) for model in MODELS),
        tuple(statistics.median(entry[name] for entry in steps) for name in TIMES),
        seconds,
    )


def row(record: Record) -> str:
    """Row of the table."""
    shares = [f"{share:.1%}" for share in (*record.solved, *record.looked[1:])]
    seconds = [f"{value:.2f} s" for value in record.step]
    return f"| {record.seed} | {' | '.join((*shares, *seconds))} | {record.cpu:.0f} |"


def summary(records: list[Record]) -> str:
    """Medians, with the lowest and the highest, and the shares of a step."""
    spreads = []
    for place, name in enumerate(("base", "after SFT", "after RL")):
        values = [record.solved[place] for record in records]
        spreads.append(f"{name} {statistics.median(values):.1%} ({min(values):.1%} to {max(values):.1%})")
    parts = [statistics.median(record.step[place] for record in records) for place in range(len(TIMES))]
    named = zip(("sampling", "environment", "training"), parts, strict=True)
    shares = ", ".join(f"{name} {part / sum(parts):.0%}" for name, part in named)
    return f"Solved, median (lowest to highest): {', '.join(spreads)}. Of a step's time: {shares}."


def write(records: list[Record], code: str, jobs: int) -> None:
    """Write the table into the page, with the code, the day and the machine."""
    machine = f"{processor()}, {os.cpu_count()} cores, {jobs} at a time, Python {platform.python_version()}"
    command = f"python benchmarks/environments.py --seeds {len(records)} --jobs {jobs} --write"
    about = f"Code {code}, {time.strftime('%Y-%m-%d')}, {machine}; made by `{command}`."
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    text = "\n".join([about, "", HEADING, *map(row, records), "", summary(records)])
    PAGE.write_text(f"{before}{BEGIN}{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
