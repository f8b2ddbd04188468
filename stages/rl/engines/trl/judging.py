"""Rewards, and what the trainer makes of them: advantages in float64, and figures that are means over completions.

TRL computes its own from the same rewards in float32, where the mean of equal rewards is not always their value, and
gives a validation's mean over batches, in which a short last one counts as much as a whole one.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.trainer_utils import EvalLoopOutput

from nemotron_data.chat.prompt import Prompt
from nemotron_shared.runtime import distributed
from stages.rl.engines.trl.advantages import advantages_of, mean_and_spread
from stages.rl.engines.trl.batches import Batches
from stages.rl.engines.trl.groups import TeachingRowsTrainer
from stages.rl.rewards import rewarded


class JudgedTrainer(TeachingRowsTrainer):
    """A GRPOTrainer whose rewards are ours, and what follows from them."""

    batches: Batches
    weights: Sequence[float]
    """Of the rewards, in their order."""
    leave_one_out = True
    rows: Sequence[int] = ()
    """What is being sampled: numbers of completions of the step's batch, or of rows of the validation."""
    _rewards = np.empty((0, 0))
    """Of the completions sampled last: (those of all processes, rewards) float64."""
    prompts: Mapping[str, Prompt]
    """By the names that stand in the rows."""

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        """Ids of each prompt, and nothing of what a model that sees images is given."""
        return [self.prompts[name].ids for name in prompts], None, {}

    def _calculate_rewards(self, inputs: Any, prompts: list[str], completions: list[str], ids: Any) -> Tensor:
        """The rewards of all processes' completions, (completions, rewards)."""
        found = self._judged(prompts, completions, [row["expected"] for row in inputs])
        gathered = self.accelerator.gather(torch.from_numpy(found).to(self.accelerator.device))
        self._rewards = gathered.cpu().numpy()
        return gathered.float()

    def _judged(self, prompts: list[str], completions: list[str], expected: list[str]) -> np.ndarray:
        answers = list(zip([self.prompts[name].text for name in prompts], completions, expected, strict=True))
        return np.array([[rewarded(name, *answer) for name in self.reward_func_names] for answer in answers])

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        """Completions of a step, with our advantages."""
        found = super()._generate_and_score_completions(inputs)
        processes = distributed.world_size()
        order = np.concatenate([self.batches.rows_of(process, processes) for process in range(processes)])
        rewards = self._rewards[np.argsort(order)]  # in the order of the batch
        grouped = self._summed(rewards).reshape(-1, self.batches.completions)
        normalize = self.scale_rewards == "group"
        advantages = advantages_of(grouped, leave_one_out=self.leave_one_out, normalize=normalize).ravel()
        found["advantages"] = torch.from_numpy(advantages[self.rows]).to(found["advantages"])
        self._note("train", **self._figures(rewards, grouped))
        return found

    def _summed(self, rewards: np.ndarray) -> np.ndarray:
        """The weighted sum of each completion's rewards; of equal rewards equal ones."""
        return np.array(
            [math.fsum(weight * one for weight, one in zip(self.weights, row, strict=True)) for row in rewards]
        )

    def _figures(self, rewards: np.ndarray, grouped: np.ndarray) -> dict[str, float]:
        """Under TRL's names; `grouped` (groups, completions) are the weighted sums."""
        _, spread = mean_and_spread(grouped)
        means = {
            f"rewards/{name}/mean": _mean(one) for name, one in zip(self.reward_func_names, rewards.T, strict=True)
        }
        zero = float((spread == 0).mean())
        return {
            "reward": float(grouped.mean()),
            "reward_std": float(spread.mean()),
            "frac_reward_zero_std": zero,
        } | means

    def _note(self, mode: str, **figures: float) -> None:
        """Have TRL log these figures instead of its own."""
        self._metrics[mode].update({name: [value] for name, value in figures.items()})

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        """One completion of each row, and the mean of their rewards: the same in passes and on processes of any number.

        Every process makes as many passes: one that has no row left samples the last one again, and nobody counts it.
        """
        model: Any = self.model
        model.eval()
        rows: Any = self.eval_dataset
        processes, size = distributed.world_size(), self.args.per_device_eval_batch_size
        mine = range(distributed.rank(), len(rows), processes)
        rewards = np.zeros((len(rows), len(self.reward_func_names)))
        for first in range(0, -(-len(rows) // processes), size):
            numbers = list(mine[first : first + size])
            found = self._answered([rows[number] for number in numbers or [len(rows) - 1]], numbers or [len(rows) - 1])
            if numbers:
                rewards[numbers] = found
        whole = torch.from_numpy(rewards).to(self.accelerator.device)
        if processes > 1:
            torch.distributed.all_reduce(whole)
        metrics = {f"{metric_key_prefix}_reward": _mean(self._summed(whole.cpu().numpy()))}
        return EvalLoopOutput(predictions=np.empty(0), label_ids=None, metrics=metrics, num_samples=len(rows))

    def _answered(self, rows: list[dict[str, str]], numbers: list[int]) -> np.ndarray:
        """The rewards of one completion of each row."""
        self.rows = numbers
        prompts, tokenizer = [row["prompt"] for row in rows], self.processing_class
        ids, _, _ = self._tokenize_prompts(prompts)
        completions, _ = self._generate_single_turn(ids, None, {}, 1)
        texts = tokenizer.batch_decode(completions, skip_special_tokens=True)  # ty: ignore[missing-union-attribute]
        return self._judged(prompts, texts, [row["expected"] for row in rows])


def _mean(values: np.ndarray) -> float:
    """As exact as a float can be, whatever order the values come in."""
    return math.fsum(values.ravel()) / values.size
