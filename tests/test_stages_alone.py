"""`torchrun stages/<stage>/train.py -c tiny` in a fresh home: each stage alone, with one and with two processes."""

import json
import os
import subprocess
from itertools import product
from pathlib import Path

import pytest
from lanes import slow
from support import STAGES, short, torchrun

PRODUCES = {"pretrain": "pretrain-model", "sft": "sft-model", "rl": "rl-model", "eval": "eval-results"}
ORDINARY = ("sft", 2)


@pytest.mark.parametrize(
    ("stage", "processes"), [ORDINARY, *slow(*(one for one in product(STAGES, (1, 2)) if one != ORDINARY))]
)
def test_a_stage_runs_alone(run, tmp_path: Path, stage: str, processes: int) -> None:
    made_by(run(*torchrun(stage, processes), *short(stage)).stderr, tmp_path, stage)


@pytest.mark.slow
def test_a_stage_runs_alone_in_new_processes(tmp_path: Path) -> None:
    """The others are forks that have torch already; these import it three times."""
    environment = os.environ | {"NEMOTRON_HOME": str(tmp_path / "home")}
    command = [*torchrun("sft", 2), *short("sft")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made_by(done.stderr, tmp_path, "sft")


def made_by(said: str, place: Path, stage: str) -> None:
    """There is one result, whichever process has published it."""
    (folder,) = (place / "home" / "artifacts" / f"super3-{PRODUCES[stage]}").glob("v*")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert folder.name == "v1" and manifest["parents"][0]["role"] == "data"
    if stage == "eval":
        scores = json.loads((folder / "results.json").read_text())["scores"]
        assert [entry["model"] for entry in scores] == ["random"] * 3
    else:
        assert (folder / "model.safetensors").is_file()
    if stage != "pretrain":
        assert said.count("starting from random weights") == 1
    assert said.count("published super3-" + PRODUCES[stage]) == 1
