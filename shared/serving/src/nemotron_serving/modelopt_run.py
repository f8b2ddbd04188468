"""NVIDIA's ModelOpt, started with the Python of the environment `modelopt`, where nothing of ours can be imported.

    python modelopt_run.py FOLDER TARGET RECIPE ROWS.json

quantises the model of a folder with one of ModelOpt's own recipes, and has ModelOpt write it. ROWS are the token ids
that are run through it first: the scales of what enters a layer are those of the largest values seen.
"""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import modelopt.torch.quantization as mtq  # ty: ignore[import-not-found]
import torch
from modelopt.torch.export import export_hf_checkpoint  # ty: ignore[import-not-found]
from transformers import AutoModelForCausalLM

SMALL = 50_000_000
"""Parameters below which one thread computes: on a busy machine, two took four times as long."""


def main(folder: str, target: str, recipe: str, rows: list[list[int]]) -> None:
    """Write the quantised folder."""
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False).eval()
    if model.num_parameters() < SMALL:
        torch.set_num_threads(1)

    def calibrate(model: Any) -> None:
        with torch.no_grad():
            for ids in rows:
                model(torch.tensor([ids]), use_cache=False)

    model = mtq.quantize(model, copy.deepcopy(getattr(mtq, recipe)), calibrate)
    with torch.inference_mode():
        export_hf_checkpoint(model, export_dir=target)


if __name__ == "__main__":
    main(*sys.argv[1:4], json.loads(Path(sys.argv[4]).read_text()))
