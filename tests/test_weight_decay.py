"""Every way to train decays matrices, kernels and embeddings by rate x decay x weight in a step, and nothing else."""

import re
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support import SHORT, last_values, make_model

RATE = 0.01
ONE_STEP = (
    "train.train_iters=1", f"optimizer.lr={RATE}", f"optimizer.min_lr={RATE}", "scheduler.lr_decay_style=constant",
    "scheduler.lr_warmup_iters=0", "data_prep.workers=1",
)  # fmt: skip
PAIRS = ("data_prep.synthetic_problems=20", "data_prep.holdout.rows=7", "train.eval_rows=7")
DOORS = {
    "sft": ("sft", "super3-sft-model", ("-c", "tiny", *SHORT["sft"])),
    "grpo": ("rl", "super3-rl-model", ("-c", "tiny", *SHORT["rl"])),
    "distillation": ("rl", "super3-rl-model", ("-c", "distill_tiny", *SHORT["rl"], "run.teacher=./model")),
    "dpo": ("rl", "super3-rl-model", ("-c", "dpo_tiny", *PAIRS)),
    "reward": ("rl", "super3-reward-model", ("-c", "reward_tiny", *PAIRS)),
}


def trained(home: Path, door: str, decay: float) -> dict[str, torch.Tensor]:
    """The weights after one step from ./model, by its names."""
    stage, name, words = DOORS[door]
    settings = (*ONE_STEP, f"optimizer.weight_decay={decay}", f"run.home={home}", "run.model=./model")
    assert import_module(f"stages.{stage}.train").main(last_values([*words, *settings])) == 0
    weights = load_file(max(home.glob(f"artifacts/{name}/v*")) / "model.safetensors")
    return {re.sub(r"^model[.]", "backbone.", name): value for name, value in weights.items()}  # a reward model's


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_a_step_with_decay_differs_by_rate_times_decay_times_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make_model(tmp_path / "model")
    start = load_file("model/model.safetensors")
    without, decayed = (trained(tmp_path / "home", door, decay) for decay in (0.0, 1.0))
    found = {True: 0, False: 0}
    for name in start.keys() & without.keys():
        wanted = RATE * start[name] if (decays := start[name].dim() > 1) else torch.zeros_like(start[name])
        torch.testing.assert_close(without[name] - decayed[name], wanted, rtol=0, atol=1e-6, msg=name)
        found[decays] += bool(start[name].any())
    assert min(found.values()) >= 5


@pytest.mark.slow
def test_pretraining_decays_no_vector_of_the_prediction_block_either(tmp_path: Path) -> None:
    main = import_module("stages.pretrain.train").main
    for decay in (0.0, 1.0):
        words = ["-c", "tiny_mtp", *SHORT["pretrain"], *ONE_STEP, f"optimizer.weight_decay={decay}"]
        assert main(last_values([*words, f"run.home={tmp_path}"])) == 0
    without, decayed = (
        load_file(tmp_path / f"artifacts/super3-pretrain-model/v{version}/model.safetensors") for version in (1, 2)
    )
    moved = {name: not torch.equal(without[name], decayed[name]) for name in without}
    assert {name for name in without if name.startswith("mtp.") and without[name].dim() == 1}
    assert moved == {name: value.dim() > 1 for name, value in without.items()}
