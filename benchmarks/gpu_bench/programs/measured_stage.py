"""Run a stage's training command, and write its peak of allocated GPU memory to a file.

python benchmarks/gpu_bench/programs/measured_stage.py memory.json sft -c tiny engine=automodel
"""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


class PeakMemory:
    """torch's own peak, across all resets by an engine."""

    def __init__(self, read: Callable[[], int], reset: Callable[..., Any]) -> None:
        self.read = read
        self._reset = reset
        self._before = 0

    def reset(self, *args: Any, **kwargs: Any) -> None:
        """Replacement for `torch.cuda.reset_peak_memory_stats`: save the peak, then reset it."""
        self._before = self.highest()
        self._reset(*args, **kwargs)

    def highest(self) -> int:
        """Bytes."""
        return max(self._before, self.read())


def main(words: list[str]) -> int:
    """Run the stage; returns its exit code."""
    file, stage, *rest = words
    step = importlib.import_module(f"stages.{stage}.train").STEP
    if not torch.cuda.is_available():
        return step.main(rest)
    peak = PeakMemory(torch.cuda.max_memory_allocated, torch.cuda.reset_peak_memory_stats)
    torch.cuda.reset_peak_memory_stats = peak.reset
    code = step.main(rest)
    Path(file).write_text(json.dumps({"peak_bytes": peak.highest()}), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
