"""Settings that only mean something together are judged together, by dry runs of every stage and engine."""

import importlib
import json
from pathlib import Path

import pytest
import torch

from nemotron_engines.nemo_rl.translate import megatron_optimizer, torch_optimizer
from nemotron_engines.transformers.trainer import learning_rate_factor
from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve
from nemotron_shared.config.validate import validate
from stages.rl.schema import RLConfig
from stages.rl.train import STEP


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The problems and notes of a dry run."""
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))

    def ask(stage: str, *words: str, about: str = "train_iters") -> tuple[list[str], list[str]]:
        capsys.readouterr()
        importlib.import_module(f"stages.{stage}.train").main(["-c", "tiny", *words, "--dry-run", "--json"])
        preview = json.loads(capsys.readouterr().out)
        return preview["problems"], [note for note in preview["notes"] if about in note]

    return ask


@pytest.mark.parametrize("stage", ["pretrain", "sft", "rl"])
def test_a_training_that_is_shorter_than_its_schedule_says_what_it_does_instead(stage: str, told) -> None:
    assert told(stage) == ([], [])
    warmup = "10 steps (train.train_iters) have a warmup of 9, not 50 (scheduler.lr_warmup_iters)"
    words = ("train.train_iters=10", "scheduler.lr_warmup_iters=50")
    assert told(stage, *words, "scheduler.lr_decay_style=cosine") == ([], [warmup])
    words = (*words, "scheduler.lr_decay_style=WSD", "scheduler.lr_wsd_decay_iters=30")
    assert told(stage, *words) == ([], [f"{warmup} and a decay of 1, not 30 (scheduler.lr_wsd_decay_iters)"])


@pytest.mark.parametrize("stage", ["pretrain", "sft", "rl"])
def test_a_decay_that_would_raise_the_rate_is_refused_with_a_rate_that_works(stage: str, told) -> None:
    (problem,), _ = told(stage, "optimizer.lr=1e-5", "optimizer.min_lr=1e-4")
    assert "optimizer.min_lr 0.0001 is above optimizer.lr 1e-05" in problem
    assert "set optimizer.min_lr=1e-06" in problem
    assert told(stage, "optimizer.lr=1e-5", "optimizer.min_lr=1e-06")[0] == []
    assert told(stage, "optimizer.lr=1e-5", "optimizer.min_lr=1e-4", "scheduler.lr_decay_style=constant")[0] == []


@pytest.mark.parametrize(("stage", "engine", "low", "usual"), [
    ("pretrain", "transformers_lora", "1e-05", "0.0002"), ("sft", "transformers_lora", "1e-05", "0.0002"),
    ("rl", "trl_lora", "3e-06", "4e-05"),
])  # fmt: skip
def test_adapters_with_a_rate_for_all_weights_are_noticed(stage: str, engine: str, low: str, usual: str, told) -> None:
    words = (f"optimizer.lr={low}", "optimizer.min_lr=0")
    _, (note,) = told(stage, f"engine={engine}", *words, about="adapters")
    assert note.startswith(f"optimizer.lr={low} is a rate for all weights") and f"optimizer.lr={usual}" in note
    assert told(stage, *words, about="adapters")[1] == []
    assert told(stage, f"engine={engine}", f"optimizer.lr={usual}", "optimizer.min_lr=0", about="adapters")[1] == []


def test_rewards_that_teach_nothing_or_stand_twice_are_refused(told) -> None:
    (nothing,), _ = told("rl", "rewards=[{name: strict, weight: 0}, {name: lenient, weight: 0}]")
    assert "rewards: all weights are 0" in nothing
    (twice,), _ = told("rl", "rewards=[{name: strict, weight: 1}, {name: strict, weight: 2}]")
    assert "rewards: 'strict' is listed twice" in twice
    assert told("rl", "rewards=[{name: strict, weight: 1}, {name: well_formed, weight: -0.5}]")[0] == []


def rl_config(*words: str) -> RLConfig:
    composed = compose(STEP.directory / "config", "tiny", ["engine=nemo_rl", *words])
    return validate(RLConfig, resolve(composed.tree, lambda role, field: "x"), composed.origins)


@pytest.mark.parametrize("style", ["linear", "cosine", "constant"])
def test_nemo_rl_gets_a_schedule_that_fits(style: str) -> None:
    config = rl_config(f"scheduler.lr_decay_style={style}", "train.train_iters=6", "scheduler.lr_warmup_iters=9")
    assert megatron_optimizer(config)["policy.megatron_cfg.scheduler.lr_warmup_iters"] == 5
    *stages, last = torch_optimizer(config)["policy.scheduler"]
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=config.optimizer.lr)
    made = [
        getattr(torch.optim.lr_scheduler, one["name"].rpartition(".")[2])(optimizer, **one["kwargs"]) for one in stages
    ]
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, made, **last)
    ours = learning_rate_factor(config.optimizer, config.scheduler, 6)
    rates = []
    for _ in range(6):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert rates[-1] == pytest.approx(config.optimizer.lr * ours(5))
    assert rates == sorted(rates), "all of it is the warmup"
