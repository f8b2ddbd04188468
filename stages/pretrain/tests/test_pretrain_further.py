"""Pretraining that goes on from a model instead of random weights."""

import json
from pathlib import Path

import pytest

from nemotron_shared.artifacts import Artifact
from nemotron_shared.step.arguments import Arguments
from nemotron_shared.step.start import load
from nemotron_shared.step.step import make
from nemotron_shared.system.errors import UserError
from stages.pretrain.train import STEP

SMALL = ("data_prep.synthetic_documents=400", "data_prep.workers=1", "train.eval_rows=8", "logger.tensorboard=false",
         "train.seq_length=64", "scheduler.lr_wsd_decay_iters=1", "scheduler.lr_warmup_iters=2")  # fmt: skip


def train(home: Path, *overrides: str) -> Artifact:
    words = (f"run.home={home}", *SMALL, *overrides)
    return make(load(STEP, Arguments("tiny", words, dry_run=False, json=False)))[0]


def first_loss(artifact: Artifact) -> float:
    lines = (artifact.path / "metrics.jsonl").read_text().splitlines()
    return next(entry["loss"] for entry in map(json.loads, lines) if "loss" in entry)


@pytest.mark.slow
def test_training_starts_where_the_given_model_ended(tmp_path: Path) -> None:
    base = train(tmp_path, "train.train_iters=20")
    further = train(tmp_path, "train.train_iters=2", f"run.model={base.reference}")
    assert first_loss(base) > 6
    assert first_loss(further) < first_loss(base) - 1
    assert [parent.role for parent in further.manifest.parents] == ["data", "model"]


def test_a_model_that_is_not_there_is_an_error_where_it_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"run\.model"):
        train(tmp_path, "train.train_iters=2", "run.model=super3-pretrain-model:v9", "run.missing_model=error")
