"""Leaving out the backward pass of rows that teach nothing changes no figure of a training."""

import json
from pathlib import Path

import pytest
import torch
from support import last_values_win, short
from torch import Tensor, nn
from trl import GRPOTrainer

from stages.rl import train
from stages.rl.engines.trl.trainer import TeachingRowsTrainer
from stages.rl.rewards import Judge

main = last_values_win(train.main)


FIGURES = {"loss": 1e-4, "grad_norm": 1e-3, "entropy": 1e-4, "reward": 0.0, "zero_advantage_fraction": 0.0}
"""Figures of a step, and how far they may be apart: other batches add their floats up in another order."""


def reward(name: str, prompt: str, text: str, answer: str) -> float:
    """Instead of the table of rewards: the same for a whole group where the answer is even, else by the text."""
    return 1.0 if int(answer) % 2 == 0 else float(len(text) % 2)


def trained(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    monkeypatch.setenv("NEMOTRON_HOME", str(home))
    assert main([*short("rl"), "train.train_iters=3", "optimizer.lr=1e-4"]) == 0
    (file,) = home.glob("artifacts/super3-rl-model/v1/metrics.jsonl")
    return [entry for entry in map(json.loads, file.read_text().splitlines()) if "loss" in entry]


def test_a_training_has_the_same_figures_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Judge, "score", lambda one, text, answer, asked, row: reward(one.name, asked, text, answer))
    passes: list[tuple[int, bool]] = []
    whole = GRPOTrainer._get_per_token_logps_and_entropies

    def counted(self: GRPOTrainer, model: nn.Module, input_ids: Tensor, *args: object, **kwargs: object) -> object:
        passes.append((len(input_ids), torch.is_grad_enabled()))
        return whole(self, model, input_ids, *args, **kwargs)

    monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", counted)
    skipping = trained(tmp_path / "skipping", monkeypatch)
    apart, passes[:] = list(passes), []
    monkeypatch.setattr(TeachingRowsTrainer, "_compute_loss", GRPOTrainer._compute_loss)
    plain = trained(tmp_path / "plain", monkeypatch)
    assert any(grad for _, grad in apart) and any(not grad for _, grad in apart)
    assert sum(rows for rows, grad in apart if grad) < sum(rows for rows, grad in passes if grad)
    for one, other in zip(skipping, plain, strict=True):
        for name, apart_at_most in FIGURES.items():
            assert one[name] == pytest.approx(other[name], rel=apart_at_most, abs=apart_at_most * 1e-2), (
                name,
                one,
                other,
            )
