"""NeMo-RL's metrics: convert them to metrics.jsonl, and read its printed output for `nemotron check`.

    ========================= Step 1/50 =========================
      • Loss: 2.4817
    Collecting rollouts:  21%|██        | 428/2048 [02:01<05:42, 4.73it/s]
    Ray: 32 of 32 nodes, 256 of 256 GPUs, 4096 CPUs

metrics.jsonl is made from the driver's TensorBoard files. A resumed driver writes a new folder (`exp_002`), whose
values replace those of the interrupted run. The printed lines are those of v0.7.0 and of the branch nano-v3. Any bullet
is accepted, because terminals without UTF-8 print a different one, and Ray puts the worker's name before lines that are
not the driver's own.
"""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

from nemotron_shared.atomic import write_text
from nemotron_shared.runtime.library_output import LibraryLog
from nemotron_shared.runtime.metrics import Metric

NAMES: dict[str, Metric] = {
    "train/loss": "loss",
    "train/lr": "lr",
    "train/grad_norm": "grad_norm",
    "train/reward": "reward",
    "train/kl_penalty": "kl",
    "train/global_valid_toks": "tokens",
    "train/token_mult_prob_error": "token_mult_prob_error",
    "performance/tokens_per_sec": "tokens_per_second",
    "timing/train/total_step_time": "step_seconds",
    "validation/accuracy": "valid_reward",
    "validation/val_loss": "valid_loss",
}
GPU = re.compile(r"ray/node\.\d+\.gpu\.\d+\.util")
"""Ray's measurement with `logger.monitor_gpus`, in percent, by seconds instead of steps."""


def read_scalars(file: Path) -> Iterator[tuple[str, int, float]]:
    """(metric, step, value) for all of our metrics in a TensorBoard file, and `gpu_utilization`."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(file), size_guidance={"scalars": 0})
    events.Reload()
    steps: dict[int, dict[str, float]] = {}
    for theirs in sorted(events.Tags()["scalars"]):
        for event in events.Scalars(theirs) if theirs in NAMES else ():
            steps.setdefault(event.step, {})[NAMES[theirs]] = float(event.value)
        for event in events.Scalars(theirs) if GPU.fullmatch(theirs) else ():
            yield "gpu_utilization", event.step, float(event.value)
    for step, values in steps.items():
        if values.get("step_seconds"):  # its fine-tuning writes tokens and time, but not their ratio
            values.setdefault("tokens_per_second", values.get("tokens", 0.0) / values["step_seconds"])
        for name, value in values.items():
            yield name, step, value


def write_metrics(logs: Path, file: Path) -> list[tuple[int, str, float]]:
    """Rewrite metrics.jsonl from all `exp_*` folders.

    Returns step, name and value of non-finite values, which are left out because JSON cannot represent them.
    """
    unwritten: list[tuple[int, str, float]] = []
    steps: dict[int, dict[str, float]] = {}
    folders = [path for path in logs.glob("exp_*") if re.fullmatch(r"exp_\d+", path.name)]
    for folder in sorted(folders, key=lambda path: int(path.name[4:])):
        for log in sorted((folder / "tensorboard").glob("events.out.*")):
            for name, step, value in read_scalars(log):
                if name in NAMES.values() and not math.isfinite(value):
                    unwritten.append((step, name, value))
                elif name in NAMES.values():
                    steps.setdefault(step, {})[name] = value
    tokens = seconds = 0.0
    lines = []
    for step, values in sorted(steps.items()):
        # NeMo-RL counts both per step; metrics.jsonl has running totals with every engine
        if "tokens" in values:
            values["tokens"] = tokens = tokens + values["tokens"]
        if "step_seconds" in values:
            values["seconds"] = seconds = seconds + values["step_seconds"]
        lines.append(json.dumps({"step": step, **values}) + "\n")
    if lines:
        write_text(file, "".join(lines))
    return unwritten


BULLET = r"(?:^|\))\W*"
LOG = LibraryLog(
    title="NeMo-RL",
    lines={
        "tep ": r"(?:=+ |Training )[Ss]tep (?P<step>\d+)/(?P<steps>\d+)",
        "Loss: ": rf"{BULLET}Loss: (?P<loss>\S+)",
        "Validation loss: ": rf"{BULLET}Validation loss: (?P<valid_loss>\S+)",
        "Accuracy: ": rf"{BULLET}Accuracy: (?P<valid_reward>\S+)",
        "Reward: ": rf"{BULLET}Avg (?:Total )?Reward: (?P<reward>\S+)",
        "Generation Length: ": rf"{BULLET}Mean Generation Length: (?P<completion_length>\S+)",
        "step time: ": rf"{BULLET}Total step time: (?P<step_seconds>[\d.]+)s",
        "Collecting rollouts": r"Collecting rollouts:.*?\| *(?P<rollouts>\d+)/(?P<rollouts_wanted>\d+) \[",
        " GPUs, ": r"\bRay: \d+ of \d+ nodes, (?P<actors>\d+) of (?P<actors_wanted>\d+) GPUs",  # one actor each
        "actors online": r"Number of actors online: (?P<actors>\d+)/(?P<actors_wanted>\d+)",
    },
    scalars=read_scalars,
)
