"""Every figure that a step of GRPO logs, computed a second time by transformers and torch alone, from the tokens that
were sampled and the weights that sampled them: of completions that were cut and of others, with two updates of two
passes.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import exp, fsum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import last_values_win, short
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from zoo import write

from stages.rl import train
from stages.rl.engines.trl.sampling import SamplingTrainer
from stages.rl.rewards import Judge

main = last_values_win(train.main)

PROMPTS, COMPLETIONS, UPDATES, PASSES, MOST = 4, 4, 2, 2, 10
KL, LOW, HIGH, HEAT, WEIGHT, RATE = 0.05, 0.002, 0.004, 1.3, 1.2, 2e-3
BUFFER, PENALTY = 4, 0.5
ENDS = [*range(3, 90)]
"""Tokens that end an answer: enough of them that random weights often draw one."""
WORDS = (
    *short("rl"), "--rehearsed", "data_prep.synthetic_problems=20", "train.train_iters=1", "train.eval_interval=100",
    f"train.micro_batch_size={PROMPTS * COMPLETIONS // (UPDATES * PASSES)}", f"grpo.num_prompts_per_step={PROMPTS}",
    f"grpo.num_generations_per_prompt={COMPLETIONS}", f"grpo.updates_per_step={UPDATES}",
    f"grpo.max_new_tokens={MOST}", f"grpo.reference_policy_kl_penalty={KL}", f"grpo.ratio_clip_min={LOW}",
    f"grpo.ratio_clip_max={HIGH}", f"grpo.temperature={HEAT}", "grpo.overlong_filtering=true",
    f"grpo.truncated_importance_sampling_ratio={WEIGHT}", f"grpo.overlong_buffer_length={BUFFER}",
    f"grpo.overlong_buffer_penalty={PENALTY}", "grpo.use_leave_one_out_baseline=false", "grpo.normalize_rewards=false",
    "scheduler.lr_warmup_iters=0", "scheduler.lr_decay_style=constant", f"optimizer.lr={RATE}",
    "optimizer.weight_decay=0", "engine.exact_sampling=false", "rewards=[{name: strict, weight: 1.0}]",
)  # fmt: skip
LOSSES = {
    "dapo": (),
    "grpo": ("grpo.loss_type=grpo",),
    "gspo": ("grpo.loss_type=grpo", "grpo.sequence_level_importance_ratios=true"),
    "dr_grpo": ("grpo.loss_type=dr_grpo",),
    "bnpo": ("grpo.loss_type=bnpo",),
    "cispo": ("grpo.loss_type=cispo", "grpo.ratio_clip_min=1"),
    "sapo": ("grpo.loss_type=sapo",),
}


def reward(name: str, prompt: str, text: str, answer: str) -> float:
    """Of a right answer that is even, any completion earns as much; the others are told apart."""
    return 0.5 if int(answer) % 2 == 0 else float(len(text) % 3)


def apart(place: int) -> float:
    """What is added to the recorded log-probability of a token, as if another program had sampled it."""
    return 0.3 * float(np.sin(place + 1))


@dataclass
class Completion:
    """One completion of a step, as it was sampled.

    Attributes:
        now: log-probabilities of its tokens, of the weights of its update; `before`, `start`: of those that sampled,
            and of the first ones, which here are the same.
    """

    prompt: list[int]
    ids: list[int]
    asked: str
    expected: str
    counts: bool = True
    advantage: float = 0.0
    now: Tensor = field(default_factory=lambda: torch.zeros(0))
    before: Tensor = field(default_factory=lambda: torch.zeros(0))
    drawn: Tensor = field(default_factory=lambda: torch.zeros(0))
    entropy: Tensor = field(default_factory=lambda: torch.zeros(0))


@dataclass
class Seen:
    """What was sampled, in the order of the batch, and the weights before each update."""

    completions: list[Completion] = field(default_factory=list)
    weights: list[dict[str, Tensor]] = field(default_factory=list)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    found = Seen()
    sample, compute = SamplingTrainer._generate_single_turn, SamplingTrainer._compute_loss

    def sampled(self: SamplingTrainer, prompts: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        ids, logps = sample(self, prompts, *args, **kwargs)
        if self.model.training:
            rows: Any = self.train_dataset
            asked = [rows[number] for number in self.batches.asked(self.state.global_step)]
            for row, (prompt, one) in enumerate(zip(prompts, ids, strict=True)):
                of = asked[row // COMPLETIONS]
                found.completions.append(Completion(prompt, one, of["prompt"], of["expected"]))
        return ids, [[p + apart(place) for place, p in enumerate(row)] for row in logps]

    def computed(self: SamplingTrainer, model: Any, inputs: dict[str, Any]) -> Tensor:
        if self.next_pass % PASSES == 0:
            found.weights.append({name: value.detach().clone() for name, value in model.state_dict().items()})
        return compute(self, model, inputs)

    monkeypatch.setattr(SamplingTrainer, "_generate_single_turn", sampled)
    monkeypatch.setattr(SamplingTrainer, "_compute_loss", computed)
    monkeypatch.setattr(Judge, "score", lambda one, text, answer, asked, row: reward(one.name, asked, text, answer))
    yield found


def expected(seen: Seen, folder: Path, loss: str) -> dict[str, float]:
    """The figures of the step."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    made = seen.completions
    texts = [tokenizer.decode(one.ids, skip_special_tokens=True) for one in made]
    rewards = [reward("", "", text, one.expected) for text, one in zip(texts, made, strict=True)]
    reduced = [
        one - PENALTY * max(0, len(of.ids) - MOST + BUFFER) / BUFFER for one, of in zip(rewards, made, strict=True)
    ]
    groups = [slice(first, first + COMPLETIONS) for first in range(0, len(made), COMPLETIONS)]
    for group in groups:
        for one, own in zip(made[group], reduced[group], strict=True):
            one.advantage = own - fsum(reduced[group]) / COMPLETIONS
            one.counts = one.ids[-1] in ENDS
    with torch.no_grad():
        for one in made:
            one.before, _ = logps(model, one)
            one.drawn = one.before + torch.tensor([apart(place) for place in range(len(one.ids))])
    size = len(made) // UPDATES
    losses, norms = [], []
    for update, weights in enumerate(seen.weights):
        model.load_state_dict(weights)
        model.zero_grad()
        part = made[update * size : (update + 1) * size]
        for one in part:
            one.now, one.entropy = logps(model, one)
        value = loss_of(loss, part)
        value.backward()
        losses.append(float(value.detach()))
        norms.append(float(torch.stack([one.grad.double().norm() for one in model.parameters()]).norm()))
    counted = [one for one in made if one.counts]

    def mean(values: list[Tensor]) -> float:
        return float(torch.cat(values).detach().mean())

    spreads = [float(np.std(rewards[group], ddof=1)) for group in groups]
    apart_by = [one.before - one.drawn for one in counted]
    figures = {
        "loss": fsum(losses) / UPDATES,
        "grad_norm": norms[-1],
        "lr": RATE,
        "reward": fsum(rewards) / len(rewards),
        "rewards/strict/mean": fsum(rewards) / len(rewards),
        "reward_std": fsum(spreads) / len(groups),
        "zero_advantage_fraction": sum(not any(one.advantage for one in made[group]) for group in groups) / len(groups),
        "distinct_completions": len(set(texts)) / len(made),
        "entropy": mean([one.entropy.detach() for one in counted]),
        "kl": mean([k3(one) for one in counted]),
        "completion_length": sum(len(one.ids) for one in made) / len(made),
        "truncated_fraction": sum(not one.counts for one in made) / len(made),
        "differing_tokens": 1.0,
        "logprob_difference": max(float(one.abs().max()) for one in apart_by),
        "token_mult_prob_error": mean([one.abs().exp() for one in apart_by]),
        "bounded_weights": mean([(weight_of(loss, one) > WEIGHT).double() for one in counted]),
        "sequence_ratio": fsum(exp(float(one.sum())) for one in apart_by) / len(apart_by),
    }
    return figures | ({"clipped_fraction": mean([clipped(loss, one) for one in counted])} if loss != "sapo" else {})


def logps(model: Any, one: Completion) -> tuple[Tensor, Tensor]:
    """Log-probability of each token of a completion, and entropy of the distribution that it was drawn from."""
    logits = model(input_ids=torch.tensor([one.prompt + one.ids]), use_cache=False).logits[0].double()
    every = (logits[len(one.prompt) - 1 : -1] / HEAT).log_softmax(-1)
    return every.gather(1, torch.tensor(one.ids)[:, None])[:, 0], -(every.exp() * every).sum(-1)


def ratio_of(loss: str, one: Completion) -> Tensor:
    ratio = one.now - one.before
    return (ratio.mean().expand_as(ratio) if loss == "gspo" else ratio).exp()


def weight_of(loss: str, one: Completion) -> Tensor:
    """The importance weight of each token, before it is bounded."""
    apart_by = one.before - one.drawn
    return (apart_by.sum().expand_as(apart_by) if loss == "gspo" else apart_by).exp()


def loss_of(loss: str, part: list[Completion]) -> Tensor:
    """The loss of an update, by the table of the README."""
    terms = []
    for one in part:
        ratio, advantage = ratio_of(loss, one), one.advantage
        weight = weight_of(loss, one).clamp(max=WEIGHT)
        term = -torch.minimum(ratio * advantage, ratio.clamp(1 - LOW, 1 + HIGH) * advantage)
        if loss == "cispo":
            term = -ratio.clamp(max=1 + HIGH).detach() * advantage * one.now
        if loss == "sapo":
            heat = 1.0 if advantage > 0 else 1.05
            term = -4 / heat * torch.sigmoid(heat * (ratio - 1)) * advantage
        term = weight * term + KL * k3(one)
        terms.append(term if one.counts else term * 0)
    lengths = [len(one.ids) for one in part if one.counts]
    if loss in ("grpo", "gspo", "sapo"):
        return torch.stack([one.mean() for one in terms]).mean()
    if loss == "dr_grpo":
        return torch.cat(terms).sum() / (len(part) * MOST)
    if loss == "bnpo":
        size = len(part) // PASSES
        passes = [range(first, first + size) for first in range(0, len(part), size)]
        kept = [sum(len(part[row].ids) for row in rows if part[row].counts) for rows in passes]
        sums = [torch.cat([terms[row] for row in rows]).sum() for rows in passes]
        return torch.stack([total / max(1, tokens) for total, tokens in zip(sums, kept, strict=True)]).mean()
    return torch.cat(terms).sum() / sum(lengths)


def k3(one: Completion) -> Tensor:
    """Distance of each token to the starting model, which here is the one that sampled."""
    distance = one.before - one.now
    return distance.exp() - distance - 1


def clipped(loss: str, one: Completion) -> Tensor:
    """1 for each token whose ratio the loss does not follow; of CISPO, whose ratio it lowers."""
    ratio, advantage = ratio_of(loss, one).detach(), one.advantage
    high = (ratio > 1 + HIGH) & (advantage > 0 or loss == "cispo")
    return (high | ((ratio < 1 - LOW) & (advantage < 0 and loss != "cispo"))).double()


@pytest.mark.parametrize(
    "loss", [name if name in ("dapo", "gspo") else pytest.param(name, marks=pytest.mark.slow) for name in LOSSES]
)
def test_each_figure_is_of_what_is_optimised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: Seen, loss: str
) -> None:
    folder = write("qwen3", tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ENDS}))
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    assert main([*WORDS, *LOSSES[loss], f"run.model={folder}"]) == 0
    (file,) = (tmp_path / "home").glob("artifacts/super3-rl-model/v1/metrics.jsonl")
    (line,) = (one for one in map(json.loads, file.read_text().splitlines()) if "loss" in one)
    wanted = expected(seen, folder, loss)
    assert 0 < wanted["truncated_fraction"] < 1 and 0 < wanted.get("clipped_fraction", 0.5) < 1
    assert 0 < wanted["zero_advantage_fraction"] < 1
    assert line.keys() - wanted.keys() == {"step", "seconds", "memory_gb"}
    assert line == pytest.approx(wanted | {name: line[name] for name in line.keys() - wanted.keys()}, rel=1e-3)
