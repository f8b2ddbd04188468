"""What GRPO computes, against the formulas of the README in float64 and written down a second time; and that a training
which is extended goes on as if it had never ended."""

import json
import statistics
from collections.abc import Iterator
from math import exp, fsum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import last_values_win, short

from stages.rl import train
from stages.rl.engines.trl.sampling import SamplingTrainer
from stages.rl.rewards import Judge

main = last_values_win(train.main)

PROMPTS, COMPLETIONS, UPDATES, MICRO, KL, CLIP = 4, 8, 2, 4, 0.05, (0.0005, 0.001)
MOST = 1.2
"""Of truncated importance sampling; `apart` makes weights below and above it."""
OWN_SAMPLER = ("engine.exact_sampling=false", f"grpo.truncated_importance_sampling_ratio={MOST}")
WEIGHTS = {"strict": 1.0, "well_formed": 0.2}
REWARDS = ", ".join(f"{{name: {name}, weight: {weight}}}" for name, weight in WEIGHTS.items())
SETTINGS = (
    "data_prep.synthetic_problems=14", "train.eval_interval=100", f"train.micro_batch_size={MICRO}",
    f"grpo.updates_per_step={UPDATES}", f"grpo.reference_policy_kl_penalty={KL}", f"grpo.ratio_clip_min={CLIP[0]}",
    f"grpo.ratio_clip_max={CLIP[1]}", "grpo.max_new_tokens=12", "scheduler.lr_decay_style=constant",
    "scheduler.lr_warmup_iters=0", "optimizer.lr=1e-3", f"rewards=[{REWARDS}]",
)  # fmt: skip

Step = dict[str, Any]


def reward(name: str, prompt: str, text: str, answer: str) -> float:
    """A model of random weights is never right; this tells its answers apart."""
    return {"strict": float(len(text) % 3 == 0), "well_formed": float(len(text) % 2)}[name]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Step]]:
    """What the loss of each pass is given, and the rewards of its step."""
    seen: list[Step] = []
    compute = SamplingTrainer._compute_loss

    def noted(self: SamplingTrainer, model: Any, inputs: dict[str, Any]) -> Any:
        loss = compute(self, model, inputs)
        names = ("advantages", "completion_mask", "old_per_token_logps", "ref_per_token_logps")
        entry = {name: inputs[name].double().numpy() for name in names}
        entry |= {"logps": self._logps.double().numpy(), "sampled": inputs["sampling_per_token_logps"].double().numpy()}
        seen.append(entry | {"step": self.state.global_step + 1, "rewards": self._rewards.copy()})
        return loss

    monkeypatch.setattr(SamplingTrainer, "_compute_loss", noted)
    monkeypatch.setattr(Judge, "score", lambda one, text, answer, asked, row: reward(one.name, asked, text, answer))
    yield seen


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probabilities of transformers' sampling that are other ones than those of training, as with another program."""
    sample = SamplingTrainer._generate_single_turn

    def moved(self: SamplingTrainer, *args: Any, **kwargs: Any) -> Any:
        ids, logps = sample(self, *args, **kwargs)
        if self._exact is not None:
            return ids, logps
        return ids, [[p + 0.4 * np.sin(n) for n, p in zip(*row, strict=True)] for row in zip(ids, logps, strict=True)]

    monkeypatch.setattr(SamplingTrainer, "_generate_single_turn", moved)


def trained(home: Path, monkeypatch: pytest.MonkeyPatch, steps: int, *words: str) -> dict[int, Step]:
    monkeypatch.setenv("NEMOTRON_HOME", str(home))
    assert main([*short("rl"), *SETTINGS, *words, f"train.train_iters={steps}"]) == 0
    newest = max((home / "artifacts/super3-rl-model").glob("v*"), key=lambda path: int(path.name[1:]))
    lines = map(json.loads, (newest / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line for line in lines if "loss" in line}


def figures(line: Step) -> Step:
    return {name: value for name, value in line.items() if name not in ("seconds", "memory_gb")}


def expected_advantages(rewards: np.ndarray) -> list[float]:
    """Of rewards (completions, rewards), group by group and one by one."""
    found = []
    sums = [fsum(weight * one for weight, one in zip(WEIGHTS.values(), row, strict=True)) for row in rewards]
    for first in range(0, len(sums), COMPLETIONS):
        group = sums[first : first + COMPLETIONS]
        for number, one in enumerate(group):
            others = group[:number] + group[number + 1 :]
            spread = statistics.stdev(others) if len(set(others)) > 1 else 0
            found.append((one - fsum(others) / len(others)) / (spread + 1e-6 if spread else 1))
    return found


def expected_loss(update: list[Step], most: float) -> float:
    """Of the passes of one update: a mean over all their tokens. `most` cuts the weight of a token."""
    terms = []
    for one in update:
        for row, column in zip(*one["completion_mask"].nonzero(), strict=True):
            now, before, start = (
                one[name][row, column] for name in ("logps", "old_per_token_logps", "ref_per_token_logps")
            )
            ratio, advantage = exp(now - before), one["advantages"][row]
            clipped = min(max(ratio, 1 - CLIP[0]), 1 + CLIP[1])
            apart = exp(start - now) - (start - now) - 1
            weight = min(exp(before - one["sampled"][row, column]), most)
            terms.append(KL * apart - weight * min(ratio * advantage, clipped * advantage))
    return fsum(terms) / len(terms)


@pytest.mark.slow
@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("words", [(), OWN_SAMPLER], ids=["exact", "weighed"])
def test_it_is_the_loss_of_the_readme_before_and_after_it_is_extended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: list[Step], words: tuple[str, ...]
) -> None:
    whole = trained(tmp_path / "whole", monkeypatch, 4, *words)
    seen, passes[:] = list(passes), []
    trained(tmp_path / "parts", monkeypatch, 2, *words)
    parts = trained(tmp_path / "parts", monkeypatch, 4, *words)
    assert [one["step"] for one in passes] == [one["step"] for one in seen] == sorted([1, 2, 3, 4] * 8)

    assert list(map(figures, parts.values())) == list(map(figures, whole.values()))
    for step, line in parts.items():
        mine = [one for one in passes if one["step"] == step]
        advantages = np.concatenate([one["advantages"] for one in mine])
        np.testing.assert_allclose(advantages, expected_advantages(mine[0]["rewards"]), rtol=1e-6, atol=1e-12)
        size = len(mine) // UPDATES
        losses = [
            expected_loss(mine[first : first + size], MOST if words else 1.0) for first in range(0, len(mine), size)
        ]
        assert line["loss"] == pytest.approx(fsum(losses) / UPDATES, rel=1e-4, abs=1e-6)
        first, second = (
            np.concatenate([(one["logps"] - one["sampled"])[one["completion_mask"] > 0] for one in part])
            for part in (mine[:size], mine[size:])
        )
        if words:
            assert (first > np.log(MOST)).any() and (first < 0).any(), "weights that are cut, and others"
        else:
            assert not first.any(), "the first update learns from the model that sampled, by the same bits"
            assert line["token_mult_prob_error"] == 1 and line["router_flips"] == 0
        assert second.any() and line["kl"] >= 0
        assert 0 < line["clipped_fraction"] < 0.5, "of the second update"
