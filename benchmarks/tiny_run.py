"""Run the tiny pipeline with several seeds, and record times and scores in records.md.

python benchmarks/tiny_run.py                    # seeds 1 to 10, one after the other
python benchmarks/tiny_run.py --seeds 3 --keep /tmp/runs
python benchmarks/tiny_run.py --rehearse         # a few steps with one seed, and no record

Each seed has a separate store. Times are of the whole command, including imports and report; CPU seconds are those of
all its processes.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

RECORDS = Path(__file__).with_name("records.md")
MODELS = ("base", "sft", "rl")
REHEARSAL = (
    "pretrain.train.train_iters=4", "pretrain.train.eval_interval=2", "pretrain.checkpoint.save_interval=2",
    "sft.train.train_iters=4", "sft.train.eval_interval=2", "sft.checkpoint.save_interval=2",
    "rl.train.train_iters=2", "rl.train.eval_interval=1", "rl.checkpoint.save_interval=1", "rl.grpo.max_new_tokens=8",
    "rl.grpo.num_prompts_per_step=4", "eval.data_prep.synthetic_problems=24", "eval.data_prep.synthetic_choices=12",
    "eval.data_prep.synthetic_texts=8", "eval.evaluation.max_new_tokens=8",
)  # fmt: skip


class Record(NamedTuple):
    """One run: shares of held-out sums that were solved, and seconds."""

    seed: int
    base: float
    sft: float
    rl: float
    wall: float
    cpu: float
    steps: str


def main() -> None:
    """Run, print and record."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--seeds", type=int, default=10, help="how many, from 1 on")
    words.add_argument("--keep", type=Path, help="keep the stores in this folder")
    words.add_argument("--rehearse", action="store_true", help="a few steps, to see that it runs; not recorded")
    asked = words.parse_args()
    if asked.rehearse:
        asked.seeds = 1
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="tiny-run-"))
    records = []
    for seed in range(1, asked.seeds + 1):
        records.append(run(seed, folder / str(seed), REHEARSAL if asked.rehearse else ()))
        print(row(records[-1]), flush=True)
    if asked.keep is None:
        shutil.rmtree(folder)
    if asked.rehearse:
        print(section(records))
        return
    with RECORDS.open("a", encoding="utf-8") as file:
        file.write(section(records))


def run(seed: int, home: Path, overrides: Iterable[str] = ()) -> Record:
    """Run the pipeline with one seed, in an empty store."""
    command = [sys.executable, "-m", "nemotron_app.main", "super3", "pipeline", "-c", "tiny", f"run.seed={seed}"]
    command += overrides
    before, began = cpu_seconds(), time.monotonic()
    done = subprocess.run(command, env=os.environ | {"NEMOTRON_HOME": str(home)}, capture_output=True, text=True)
    wall = time.monotonic() - began
    if done.returncode:
        sys.exit(done.stderr)
    results = json.loads((home / "artifacts/super3-eval-results/v1/results.json").read_text(encoding="utf-8"))
    scores = {entry["model"]: entry["value"] for entry in results["scores"] if entry["task"] == "sums"}
    steps = [manifest_of(home, f"super3-{model}-model")["metadata"]["step"] for model in ("pretrain", "sft", "rl")]
    numbers = " + ".join(map(str, steps))
    return Record(seed, *(scores[model] for model in MODELS), wall, cpu_seconds() - before, numbers)


def manifest_of(home: Path, name: str) -> Any:
    """Manifest of the first version of an artifact."""
    return json.loads((home / "artifacts" / name / "v1" / "manifest.json").read_text(encoding="utf-8"))


def cpu_seconds() -> float:
    """CPU seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def section(records: list[Record]) -> str:
    """Section to append to the file."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
    summary = [
        f"{name}: median {statistics.median(values):{shape}}, {min(values):{shape}} to {max(values):{shape}}"
        for name, values, shape in [
            *((name, [getattr(record, name) for record in records], ".1%") for name in MODELS),
            ("wall", [record.wall for record in records], ".0f"),
            ("CPU", [record.cpu for record in records], ".0f"),
        ]
    ]
    lines = [
        f"## {time.strftime('%Y-%m-%d')}, {commit.strip()}",
        f"{processor()}, {os.cpu_count()} cores, Python {platform.python_version()}; {records[0].steps} steps",
        "| seed | base | SFT | RL | wall s | CPU s |\n|--:|--:|--:|--:|--:|--:|\n" + "\n".join(map(row, records)),
        "; ".join(summary),
    ]
    return "\n" + "\n\n".join(lines) + "\n"


def row(record: Record) -> str:
    """Row of the table."""
    shares = " | ".join(f"{share:.1%}" for share in (record.base, record.sft, record.rl))
    return f"| {record.seed} | {shares} | {record.wall:.0f} | {record.cpu:.0f} |"


def processor() -> str:
    """Name of the processor."""
    lines: Iterable[str] = ()
    if Path("/proc/cpuinfo").is_file():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
