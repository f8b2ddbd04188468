"""Every loss against the formulas of the README, written down a second time in float64: its value and its gradient."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import last_values_win, short
from torch import Tensor

from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve
from nemotron_shared.config.validate import validate
from nemotron_shared.engine.engine import problems_of
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system.errors import UserError
from stages.rl import train
from stages.rl.engines.trl.batches import overlong_penalty
from stages.rl.engines.trl.sampling import SamplingTrainer, weighed
from stages.rl.engines.trl.train import grpo_settings
from stages.rl.rewards import Judge
from stages.rl.schema import RLConfig
from stages.rl.train import STEP

main = last_values_win(train.main)

UPDATES, PASSES, ROWS, LOW, HIGH, KL, MOST = 2, 2, 8, 0.002, 0.004, 0.05, 12
LOSSES = {
    "dapo": (),
    "grpo": ("grpo.loss_type=grpo",),
    "gspo": ("grpo.loss_type=grpo", "grpo.sequence_level_importance_ratios=true"),
    "dr_grpo": ("grpo.loss_type=dr_grpo",),
    "bnpo": ("grpo.loss_type=bnpo",),
    "cispo": ("grpo.loss_type=cispo", "grpo.ratio_clip_min=1"),
    "sapo": ("grpo.loss_type=sapo",),
}
WORDS = (
    *short("rl"), "data_prep.synthetic_problems=14", "train.train_iters=1", f"train.micro_batch_size={ROWS}",
    f"grpo.updates_per_step={UPDATES}", f"grpo.reference_policy_kl_penalty={KL}", f"grpo.ratio_clip_min={LOW}",
    f"grpo.ratio_clip_max={HIGH}", f"grpo.max_new_tokens={MOST}", "scheduler.lr_warmup_iters=0", "optimizer.lr=1e-3",
)  # fmt: skip


def config_of(*words: str) -> RLConfig:
    composed = compose(STEP.directory / "config", "tiny", [*WORDS[2:], *words])
    return validate(RLConfig, resolve(composed.tree, lambda role, field: "x"), composed.origins)


def expected(name: str, p: Tensor, one: dict[str, Tensor], tokens: float, kl: float = KL) -> Tensor:
    """The share of one pass, of `ROWS` completions, in the loss of an update with so many `tokens`; all float64.

    Args:
        p: log-probabilities of the model now, (rows, tokens).
    """
    mask, advantage = one["completion_mask"], one["advantages"][:, None]
    apart = p - one["old_per_token_logps"]
    if name == "gspo":
        apart = ((apart * mask).sum(1) / mask.sum(1))[:, None] * torch.ones_like(apart)
    ratio = apart.exp()
    lower = torch.where(ratio < 1 - LOW, 1 - LOW, torch.where(ratio > 1 + HIGH, 1 + HIGH, ratio))
    terms = -torch.minimum(ratio * advantage, lower * advantage)
    if name == "cispo":
        terms = -torch.where(ratio > 1 + HIGH, 1 + HIGH, ratio).detach() * advantage * p
    if name == "sapo":
        heat = torch.where(advantage > 0, 1.0, 1.05)
        terms = -4 / heat / (1 + torch.exp(-heat * (ratio - 1))) * advantage
    distance = one["ref_per_token_logps"] - p
    terms = (terms + kl * (distance.exp() - distance - 1)) * mask
    if name in ("grpo", "gspo", "sapo"):
        return (terms.sum(1) / mask.sum(1)).sum() / (PASSES * ROWS)
    divisor = {"dr_grpo": PASSES * ROWS * MOST, "bnpo": PASSES * mask.sum()}.get(name, tokens)
    return terms.sum() / divisor


def clipped(name: str, p: Tensor, one: dict[str, Tensor], tokens: float) -> float | None:
    """Share of the tokens that clipping keeps from moving the loss; of CISPO, whose ratio it lowers."""
    if name == "sapo":
        return None
    ratio = (p.detach() - one["old_per_token_logps"]).exp()
    (slope,) = torch.autograd.grad(expected(name, p, one, tokens, kl=0.0), p)
    acts = ratio > 1 + HIGH if name == "cispo" else (slope == 0) & (one["advantages"][:, None] != 0)
    return float(acts[one["completion_mask"] > 0].double().mean())


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[float, float]]:
    """How far each loss and its gradient are from those of `expected`, relative to them, in the last pass of a step."""
    found: dict[str, tuple[float, float]] = {}
    compute, probabilities = SamplingTrainer._compute_loss, SamplingTrainer._get_per_token_logps_and_entropies

    def kept(self: SamplingTrainer, *args: Any, **kwargs: Any) -> Any:
        result = probabilities(self, *args, **kwargs)
        if result[0].requires_grad:
            result[0].retain_grad()
            self.kept = result[0]  # ty: ignore[unresolved-attribute]
        return result

    def noted(self: SamplingTrainer, model: Any, inputs: dict[str, Any]) -> Tensor:
        if self.next_pass + 1 < self.passes:
            return compute(self, model, inputs)
        names = ("advantages", "completion_mask", "old_per_token_logps", "ref_per_token_logps")
        one = {name: inputs[name].double() for name in names}
        tokens = sum(float(other["completion_mask"].sum()) for other in self._passes[-PASSES:])
        for name, words in LOSSES.items():
            settings = grpo_settings(config_of(*words))
            self.loss_type, self.importance_sampling_level = (
                settings["loss_type"],
                settings["importance_sampling_level"],
            )
            self.epsilon_low, self.epsilon_high = settings["epsilon"], settings["epsilon_high"]
            loss = compute(self, model, inputs)
            (slope,) = torch.autograd.grad(loss, self.kept, retain_graph=True)  # ty: ignore[unresolved-attribute]
            p = self.kept.detach().double().requires_grad_()  # ty: ignore[unresolved-attribute]
            wanted = expected(name, p, one, tokens)
            ratios = (p - one["old_per_token_logps"]).exp()[one["completion_mask"] > 0]
            assert (ratios < 1 - LOW).any() and (ratios > 1 + HIGH).any(), "both bounds act"
            (wanted_slope,) = torch.autograd.grad(wanted, p)
            figures = {key: float(value[one["completion_mask"] > 0].double().mean())
                       for key, value in self._compared(inputs, inputs["old_per_token_logps"]).items()}  # fmt: skip
            distance = (one["ref_per_token_logps"] - p.detach())[one["completion_mask"] > 0]
            assert figures.pop("kl") == pytest.approx(float((distance.exp() - distance - 1).mean()), rel=1e-3)
            share = clipped(name, p, one, tokens)
            assert figures == ({} if share is None else {"clipped_fraction": share}), name
            assert share is None or 0 < share < 1
            found[name] = (
                abs(loss.item() / wanted.item() - 1),
                float((slope - wanted_slope).norm() / wanted_slope.norm()),
            )
        return loss

    monkeypatch.setattr(SamplingTrainer, "_get_per_token_logps_and_entropies", kept)
    monkeypatch.setattr(SamplingTrainer, "_compute_loss", noted)
    monkeypatch.setattr(Judge, "score", lambda one, text, answer, asked, row: len(text) % 3 / 2)
    return found


def test_losses_and_gradients_are_those_of_the_formulas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compared: dict[str, tuple[float, float]]
) -> None:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))
    assert main(WORDS) == 0
    assert compared.keys() == LOSSES.keys()
    assert max(max(one) for one in compared.values()) < 1e-4, compared


def test_a_long_completion_loses_what_the_formula_says() -> None:
    lengths = [1, 70, 80, 81, 90, 100]
    assert overlong_penalty(lengths, 100, 20, 0.5).tolist() == [0, 0, 0, -0.025, -0.25, -0.5]
    assert not overlong_penalty(lengths, 100, 0, 0.0).any()


def test_a_whole_completion_has_one_weight_where_it_has_one_ratio() -> None:
    drawn, trained = (
        torch.tensor([[-1.0, -2.0, -9.0], [-1.0, -1.0, -1.0]]),
        torch.tensor([[-1.2, -1.9, -1.0], [0, 0, 0]]),
    )
    inputs = {"sampling_per_token_logps": drawn, "completion_mask": torch.tensor([[1, 1, 0], [1, 1, 1]])}
    found = weighed(inputs | {"advantages": torch.tensor([2.0, 1.0])}, trained, 5.0, "sequence")
    np.testing.assert_allclose(found, [[2 * np.exp(-0.1)] * 3, [5.0] * 3], rtol=1e-6)


REFUSED = [
    (("grpo.loss_type=gspo",), "GSPO is grpo.loss_type=grpo with grpo.sequence_level_importance_ratios=true"),
    (("grpo.loss_type=ppo",), "grpo.loss_type: Input should be 'dapo', 'grpo'"),
    (("grpo.sequence_level_importance_ratios=true",), "set grpo.loss_type=grpo"),
    (("grpo.overlong_buffer_length=5",), "together"),
    (("grpo.overlong_buffer_length=13", "grpo.overlong_buffer_penalty=1"), "is the end"),
]
BY_ENGINE = [
    ("trl", ("grpo.reference_policy_kl_type=k1",), "or engine=nemo_rl, which has k1 and k2"),
    ("trl", ("grpo.loss_type=cispo",), "or engine=nemo_rl, which has one"),
    ("trl_lora", ("engine.peft.target_modules=[lm_head]", "engine.exact_sampling=false"), "leave lm_head out of"),
    ("nemo_rl", ("grpo.loss_type=sapo",), "or engine=trl"),
    ("nemo_rl", ("engine.version=nano-v3", "engine.environment=nemo_gym", "grpo.loss_type=cispo"), "or engine=trl"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_settings_that_mean_nothing_together_are_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        config_of(*words)


@pytest.mark.parametrize(("engine", "words", "message"), BY_ENGINE)
def test_an_engine_without_it_names_the_one_that_has_it(engine: str, words: tuple[str, ...], message: str) -> None:
    (problem,) = problems_of(config_of(f"engine={engine}", *words), {}, Machine.here(Path()), {})
    assert message in str(problem)


def test_the_words_of_defaults_change_nothing() -> None:
    assert config_of("grpo.loss_type=dapo", "grpo.reference_policy_kl_type=k3") == config_of()


def test_a_step_of_dynamic_sampling_learns_from_prompts_that_differ_in_reward_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of each batch, about half the prompts have one reward for all completions."""
    steps: list[np.ndarray] = []
    sampled: Callable[[SamplingTrainer], Any] = SamplingTrainer._sampled

    def noted(self: SamplingTrainer) -> Any:
        made = sampled(self)
        steps.append(torch.cat([one["advantages"] for one in made]).view(4, -1).numpy())
        return made

    def reward(name: str, prompt: str, text: str, answer: str) -> float:
        return 1.0 if int(answer) % 2 == 0 else float(len(text) % 3)

    monkeypatch.setattr(SamplingTrainer, "_sampled", noted)
    monkeypatch.setattr(Judge, "score", lambda one, text, answer, asked, row: reward(one.name, asked, text, answer))
    words = (
        *short("rl"), "grpo.use_dynamic_sampling=true", "grpo.overlong_buffer_length=4", "train.train_iters=2",
        "grpo.overlong_buffer_penalty=0.1", "train.micro_batch_size=4", "grpo.reference_policy_kl_penalty=0.01",
    )  # fmt: skip
    weights = []
    for attempt in ("one", "another"):
        monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / attempt))
        assert main(words) == 0
        (file,) = (tmp_path / attempt).glob("artifacts/super3-rl-model/v1/model.safetensors")
        weights.append(file.read_bytes())
    assert weights[0] == weights[1] and len(steps) == 4
    assert all(step.any(1).all() for step in steps), "each prompt has an advantage"

    monkeypatch.setattr(Judge, "score", lambda one, text, answer, asked, row: 1.0)
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "none"))
    assert main([*words, "grpo.dynamic_sampling_max_gen_batches=2"]) == 2
    assert "the completions of 0 of 8 prompts differ in reward, and a step takes 4" in capsys.readouterr().err


@pytest.mark.slow
def test_a_stopped_training_with_dynamic_sampling_ends_with_the_bytes_of_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward = lambda name, prompt, text, answer: 1.0 if int(answer) % 2 == 0 else float(len(text) % 3)  # noqa: E731
    monkeypatch.setattr(Judge, "score", lambda one, text, answer, asked, row: reward(one.name, asked, text, answer))
    flat = ("scheduler.lr_decay_style=constant", "scheduler.lr_warmup_iters=0", "optimizer.lr=1e-3")
    words = (*short("rl"), "grpo.use_dynamic_sampling=true", *flat)
    found = []
    for folder, parts in (("whole", (4,)), ("parts", (2, 4))):
        monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / folder))
        for steps in parts:
            assert main((*words, f"train.train_iters={steps}")) == 0
        newest = max((tmp_path / folder).glob("artifacts/super3-rl-model/v*"))
        found.append((newest / "model.safetensors").read_bytes())
    assert found[0] == found[1]
