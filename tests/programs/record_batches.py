"""Run `stages.sft.train` and write down which rows each optimizer step was trained on, one line for each forward pass.

torchrun tests/programs/record_batches.py BATCHES.jsonl -c tiny train.train_iters=8
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from transformers import Trainer

from nemotron_engines.rows import PADDING
from stages.sft.train import main

original = Trainer.training_step


def recorded(self: Trainer, model: Any, inputs: dict[str, Any], *args: Any, **options: Any) -> Any:
    """The library's step, after a line about its rows; padding depends on the batch and is left out."""
    ids = [row[row != PADDING].tolist() for row in inputs["input_ids"]]
    rows = [hashlib.sha256(json.dumps(one).encode()).hexdigest()[:16] for one in ids]
    with Path(sys.argv[1]).open("a") as file:
        file.write(json.dumps({"step": self.state.global_step, "rows": rows}) + "\n")
    return original(self, model, inputs, *args, **options)


Trainer.training_step = recorded
sys.exit(main(sys.argv[2:]))
