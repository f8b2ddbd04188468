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


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dpo", "reward"])
def test_figures_of_pairs_are_those_of_all_processes(run, tmp_path: Path, method: str) -> None:
    """Also at the last step, where the pairs read are not a multiple of those that there are."""
    words = (
        "-c", f"{method}_tiny", "data_prep.synthetic_problems=40", "data_prep.workers=1", "data_prep.holdout.rows=7",
        "train.train_iters=2", "train.micro_batch_size=2", "logger.tensorboard=false",
        f"{'reward_modeling' if method == 'reward' else method}.global_batch_size=8",
    )  # fmt: skip
    figures = []
    for processes in (1, 2):
        home = tmp_path / str(processes)
        run(*torchrun("rl", processes), *words, env={"NEMOTRON_HOME": str(home)})
        (file,) = home.glob(f"artifacts/super3-{'reward' if method == 'reward' else 'rl'}-model/v1/metrics.jsonl")
        lines = map(json.loads, file.read_text().splitlines())
        figures.append([line["reward_margin"] for line in lines if "reward_margin" in line])
    assert len(figures[0]) == 2 and figures[1] == pytest.approx(figures[0], rel=1e-3, abs=1e-4)


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
