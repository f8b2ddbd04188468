"""The steps of a training: each samples the batch of its number, and shares it out to passes and updates.

A batch of several updates is NeMo-RL's: its completions are sampled once, and each update learns from a part of them.
From the second update on the model is no longer the one that sampled, and the ratio between the two is clipped.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, SequentialSampler

from nemotron_shared.runtime import distributed
from stages.rl.engines.trl.judging import JudgedTrainer


class StepTrainer(JudgedTrainer):
    """A GRPOTrainer that reads prompts by the number of the step."""

    seed = 0
    may_be_given_up: bool
    say: Callable[[str], None]
    """One line for people."""
    _said = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._passes: list[dict[str, Any]] = []

    @property
    def passes(self) -> int:
        """Of a step."""
        return self.args.gradient_accumulation_steps

    @property
    def passes_of_update(self) -> int:
        """Those before the optimizer moves the weights."""
        return self.passes // self.batches.updates

    @property
    def next_pass(self) -> int:
        """Number of the pass that is being made, in its step. TRL counts those of this process, which begins a step."""
        return self._step % self.passes

    @property
    def is_first_update(self) -> bool:
        """Whether the weights are still those that sampled the batch."""
        return self.next_pass < self.passes_of_update

    def get_train_dataloader(self) -> DataLoader:
        """A tick for each pass, and no prompts: those of a step are known by its number, whatever came before."""
        ticks: Any = range(self.args.max_steps * self.passes * distributed.world_size())
        sampler: Any = SequentialSampler
        return self._get_dataloader(ticks, "Training", 1, sampler_fn=sampler, is_training=True)

    def _prepare_inputs(self, inputs: Any) -> dict[str, Any]:
        """The completions of the next pass."""
        if self.next_pass == 0:
            self._passes = self._sampled()
        return self._passes[self.next_pass]

    def _sampled(self) -> list[dict[str, Any]]:
        """The passes of a step."""
        step, batches = self.state.global_step, self.batches
        self.begin_to_draw(step)
        self.rows = batches.rows_of(distributed.rank(), distributed.world_size())
        rows: Any = self.train_dataset
        prompts = [rows[number] for number in batches.asked(step)]
        found = self._generate_and_score_completions([prompts[row // batches.completions] for row in self.rows])
        size = len(self.rows) // self.passes
        made = [
            {name: _part(value, number * size, size) for name, value in found.items()} for number in range(self.passes)
        ]
        tokens = torch.stack([one["completion_mask"].sum() for one in made]).view(batches.updates, -1).sum(1)
        tokens = self.accelerator.reduce(tokens, reduction="sum")
        if not tokens.any() and not self._said:
            self._said = True
            cut = f"all {batches.per_step * batches.completions} completions were cut at {self.max_completion_length}"
            self.say(
                f"step {step + 1}: {cut} tokens and are left out (grpo.overlong_filtering): nothing is learnt of it"
            )
        for number, one in enumerate(made):  # a loss is a mean over the tokens of its update
            one["num_items_in_batch"] = tokens[number // self.passes_of_update]
        return made

    def begin_to_draw(self, *what: int) -> None:
        """Begin torch's generators anew, so that nothing drawn before has a part in what is drawn from here on."""
        key = [self.seed, *what, distributed.rank()]
        torch.manual_seed(int(np.random.default_rng(key).integers(1 << 63)))

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """One pass, and after the last one of an update that update; the step's last one is the Trainer's own."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self.next_pass and self.next_pass % self.passes_of_update == 0:
            self._update(model)
        self.may_be_given_up = self.is_first_update  # the next pass
        return loss / self.batches.updates  # for the log, which adds the passes of a step up

    def _update(self, model: Any) -> None:
        """Move the weights within a step; the Trainer has not added up the processes' gradients yet."""
        if (processes := distributed.world_size()) > 1:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    torch.distributed.all_reduce(parameter.grad)
                    parameter.grad /= processes
        self._clip_grad_norm(model)
        optimizer: Any = self.optimizer.optimizer  # ty: ignore[missing-union-attribute]  # accelerate's own around it waits for the end of the step
        optimizer.step()
        optimizer.zero_grad()


def _part(value: Any, first: int, size: int) -> Any:
    return value[first : first + size] if isinstance(value, Tensor) and value.dim() else value
