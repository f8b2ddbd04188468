"""NeMo-RL's figures in our metrics.jsonl, read from the TensorBoard files that its driver writes.

A resumed driver writes another folder (`exp_002`); its figures win over those of the run that was cut off.
"""

import json
import re
from pathlib import Path
from typing import Any

from nemotron_shared.atomic import write_text
from nemotron_shared.runtime.metrics import Metric

NAMES: dict[str, Metric] = {
    "train/loss": "loss",
    "train/lr": "lr",
    "train/grad_norm": "grad_norm",
    "train/reward": "reward",
    "train/global_valid_toks": "tokens",
    "train/token_mult_prob_error": "token_mult_prob_error",
    "performance/tokens_per_sec": "tokens_per_second",
    "timing/train/total_step_time": "seconds",
    "validation/accuracy": "valid_reward",
    "validation/val_loss": "valid_loss",
}


def collect(logs: Path) -> dict[int, dict[str, Any]]:
    """Figures by step, from all `exp_*` folders."""
    steps: dict[int, dict[str, Any]] = {}
    folders = [path for path in logs.glob("exp_*") if re.fullmatch(r"exp_\d+", path.name)]
    for folder in sorted(folders, key=lambda path: int(path.name[4:])):
        for step, name, value in _scalars(folder / "tensorboard"):
            steps.setdefault(step, {})[name] = value
    return dict(sorted(steps.items()))


def write_figures(logs: Path, file: Path) -> None:
    """Write metrics.jsonl anew from everything that is there."""
    lines = [json.dumps({"step": step, **values}) + "\n" for step, values in collect(logs).items()]
    if lines:
        write_text(file, "".join(lines))


def _scalars(folder: Path) -> list[tuple[int, str, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = []
    for file in sorted(folder.glob("events.out.*")):
        events = EventAccumulator(str(file), size_guidance={"scalars": 0})
        events.Reload()
        present = events.Tags()["scalars"]
        for theirs, ours in NAMES.items():
            if theirs in present:
                found += [(event.step, ours, float(event.value)) for event in events.Scalars(theirs)]
    return found
