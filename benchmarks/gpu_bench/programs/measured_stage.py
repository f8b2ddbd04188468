"""A stage's training command with one addition: the most GPU memory that it had allocated, written to a file.

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
    """torch's own peak, over all the times that an engine sets it back."""

    def __init__(self, read: Callable[[], int], reset: Callable[..., Any]) -> None:
        self.read = read
        self._reset = reset
        self._before = 0

    def reset(self, *args: Any, **kwargs: Any) -> None:
        """In place of `torch.cuda.reset_peak_memory_stats`: remember, then set back."""
        self._before = self.highest()
        self._reset(*args, **kwargs)

    def highest(self) -> int:
        """Bytes."""
        return max(self._before, self.read())


def main(words: list[str]) -> int:
    """Run the stage; its exit code is ours."""
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
