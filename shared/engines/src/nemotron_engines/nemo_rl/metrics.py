"""NeMo-RL's metrics in our metrics.jsonl, read from the TensorBoard files that its driver writes.

A resumed driver writes another folder (`exp_002`); its values win over those of the run that was cut off.
"""

import json
import re
from pathlib import Path

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


def write_metrics(logs: Path, file: Path) -> None:
    """Write metrics.jsonl anew from everything that is there, in all `exp_*` folders."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    steps: dict[int, dict[str, float]] = {}
    folders = [path for path in logs.glob("exp_*") if re.fullmatch(r"exp_\d+", path.name)]
    for folder in sorted(folders, key=lambda path: int(path.name[4:])):
        for log in sorted((folder / "tensorboard").glob("events.out.*")):
            events = EventAccumulator(str(log), size_guidance={"scalars": 0})
            events.Reload()
            for theirs in sorted(NAMES.keys() & events.Tags()["scalars"]):
                for event in events.Scalars(theirs):
                    steps.setdefault(event.step, {})[NAMES[theirs]] = float(event.value)
    lines = [json.dumps({"step": step, **values}) + "\n" for step, values in sorted(steps.items())]
    if lines:
        write_text(file, "".join(lines))
