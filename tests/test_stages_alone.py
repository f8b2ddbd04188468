"""`torchrun stages/<stage>/train.py -c tiny` in a fresh home: each stage alone, with one and with two processes."""

import json
from itertools import product
from pathlib import Path

import pytest
from lanes import slow
from support import short, torchrun

PRODUCES = {"pretrain": "pretrain-model", "sft": "sft-model", "rl": "rl-model", "eval": "eval-results"}


@pytest.mark.parametrize(
    ("stage", "processes"), [("sft", 2), *slow(("sft", 1), *product(("pretrain", "rl", "eval"), (1, 2)))]
)
def test_a_stage_runs_alone(run, tmp_path: Path, stage: str, processes: int) -> None:
    result = run(*torchrun(stage, processes), *short(stage))
    folder = tmp_path / "home" / "artifacts" / f"super3-{PRODUCES[stage]}" / "v1"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["parents"][0]["role"] == "data"
    if stage == "eval":
        assert [entry["model"] for entry in json.loads((folder / "results.json").read_text())["scores"]] == [
            "random"
        ] * 3
    else:
        assert (folder / "model.safetensors").is_file()
    if stage != "pretrain":
        assert result.stderr.count("starting from random weights") == 1
    assert result.stderr.count("published super3-" + PRODUCES[stage]) == 1
