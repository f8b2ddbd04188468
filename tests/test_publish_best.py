"""The step that validated best is published: of whole models, adapters and shards, also after a kill."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support import last_values, script, short, torchrun
from test_attempts import stop_after
from test_resume import kill_when

MODEL = "super3-sft-model"
WORSE = (
    "train.train_iters=7", "train.eval_interval=2", "checkpoint.save_interval=3", "checkpoint.most_recent_k=1",
    "checkpoint.publish_best=always", "scheduler.lr_decay_style=constant", "scheduler.lr_warmup_iters=0",
)  # fmt: skip
"""The last step validates worse, because the learning rate is too high; validations and checkpoints do not coincide."""
WAYS = {
    "whole": (1, ("optimizer.lr=0.3",)),
    "adapters": (1, ("optimizer.lr=1.0", "engine=transformers_lora")),
    "shards": (2, ("optimizer.lr=0.3", "engine.strategy=fsdp2", "train.micro_batch_size=2")),
}


def published(home: Path, version: int = 1) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The manifest, and the tensors of the model and of its adapter."""
    folder = home / "artifacts" / MODEL / f"v{version}"
    files = (folder / "model.safetensors", folder / "adapter" / "adapter_model.safetensors")
    tensors = {f"{file.name} {name}": one for file in files if file.is_file() for name, one in load_file(file).items()}
    return json.loads((folder / "manifest.json").read_text()), tensors


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_it_is_the_model_of_a_training_that_ended_there(run, tmp_path: Path, way: str) -> None:
    processes, words = WAYS[way]
    start = script("sft") if processes == 1 else torchrun("sft", processes)
    command = last_values([*start, *short("sft"), *WORSE, *words])
    said = run(*command).stderr
    found = re.search(r"published is step (\d), which validated best: valid_loss (\S+), at the end (\S+)\n", said)
    assert found, said
    best, home = int(found[1]), tmp_path / "home"
    manifest, tensors = published(home)
    assert manifest["metadata"]["step"] == manifest["metadata"]["best_step"] == best < 7
    assert manifest["metrics"]["valid_loss"] == manifest["metadata"]["best_valid_loss"], "of the published step"
    assert float(found[2]) < float(found[3])

    assert "published" in run(*last_values([*command, f"train.train_iters={best}"])).stderr
    assert same(published(home, 2)[1], tensors)

    killed = tmp_path / "killed"
    if processes == 1:
        assert kill_when(
            command, killed, lambda: any(killed.glob("runs/*/checkpoints/checkpoint-6/COMPLETE")), tmp_path
        )
    else:  # a kill of torchrun leaves its workers alone
        stop_after(best + 2, command, killed, tmp_path)
    assert "continuing from step" in run(*command, env={"NEMOTRON_HOME": str(killed)}).stderr
    again, others = published(killed)
    assert same(others, tensors) and again["metrics"] == manifest["metrics"]
