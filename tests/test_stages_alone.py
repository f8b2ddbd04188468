"""`torchrun stages/<stage>/train.py -c tiny` in a fresh home: each stage alone, with one and with two processes."""

import json
import os
import socket
from itertools import product
from pathlib import Path

import pytest
from support import STAGES, Forked, script, short, torchrun

PRODUCES = {"pretrain": "pretrain-model", "sft": "sft-model", "rl": "rl-model", "eval": "eval-results"}


def test_two_processes_make_one_model(tmp_path: Path) -> None:
    """As torchrun starts them; torchrun itself, which imports everything three times, is in the slow lane."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*script("sft"), *short("sft")]
    environment = os.environ | {"NEMOTRON_HOME": str(tmp_path / "home"), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}  # fmt: skip
    with (tmp_path / "log").open("w") as log:
        ranks = [
            Forked(command, tmp_path, environment | {"RANK": rank, "LOCAL_RANK": rank}, log, log) for rank in ("0", "1")
        ]
        assert [rank.wait() for rank in ranks] == [0, 0], (tmp_path / "log").read_text()
    folder = tmp_path / "home" / "artifacts" / "super3-sft-model"
    assert [version.name for version in folder.glob("v*")] == ["v1"]
    assert (tmp_path / "log").read_text().count("published super3-sft-model") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "processes"), [*product(STAGES, (1, 2))])
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
