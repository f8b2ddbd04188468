"""NeMo-RL's metrics in our metrics.jsonl, read from the TensorBoard files that its driver writes.

A resumed driver writes another folder (`exp_002`); its values win over those of the run that was cut off.
"""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

from nemotron_shared.atomic import write_text
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
"""What Ray measures with `logger.monitor_gpus`, in percent, by seconds and not by steps."""


def read_scalars(file: Path) -> Iterator[tuple[str, int, float]]:
    """(metric, step, value) of all that a TensorBoard file holds of our metrics, and `gpu_utilization`."""
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
        if values.get("step_seconds"):  # its fine-tuning writes tokens and time, and not their quotient
            values.setdefault("tokens_per_second", values.get("tokens", 0.0) / values["step_seconds"])
        for name, value in values.items():
            yield name, step, value


def write_metrics(logs: Path, file: Path) -> list[tuple[int, str, float]]:
    """Write metrics.jsonl anew from everything that is there, in all `exp_*` folders.

    Returns step, name and value of what is not finite, for which JSON has no form, and which is left out.
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
        # NeMo-RL counts both anew in each step; metrics.jsonl has them from the beginning on, whoever writes it
        if "tokens" in values:
            values["tokens"] = tokens = tokens + values["tokens"]
        if "step_seconds" in values:
            values["seconds"] = seconds = seconds + values["step_seconds"]
        lines.append(json.dumps({"step": step, **values}) + "\n")
    if lines:
        write_text(file, "".join(lines))
    return unwritten
