"""TRL's GRPOTrainer with our batches, rewards and updates.

- Rows without a gradient skip the backward pass. If all completions of a group have the same reward, their advantages
  and gradients are zero; in a successful training that soon holds for half of all rows. It also holds for completions
  that were cut and are excluded from the loss (`grpo.overlong_filtering`). Their log-probabilities are computed without
  a graph, for the logged entropy and for the token count that the loss is divided by.
- Advantages are computed in float64, and figures are means over completions. TRL computes in float32, where the mean of
  equal rewards is not always their value, and averages a validation over batches, so that a short last batch counts as
  much as a full one.
- A batch may have several updates, as in NeMo-RL: completions are sampled once, and each update learns from a part of
  them. From the second update on, the trained model differs from the sampling model, and their ratio is clipped.
- Dynamic sampling (DAPO) and its length penalty, neither of which TRL has.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, SequentialSampler
from transformers.trainer_utils import EvalLoopOutput

from nemotron_data.chat.prompt import Prompt
from nemotron_data.chat.thought import whole_answer
from nemotron_shared.system import distributed
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.completions import CompletionsLog, is_kept
from stages.rl.engines.trl.batches import Batches, advantages_of, mean_and_spread, overlong_penalty
from stages.rl.engines.trl.completions import Answer, Batch, Compared, Likeness, Silence, kept
from stages.rl.engines.trl.library import GRPOTrainer
from stages.rl.rewards import MODEL, NO_ROW, Judge


def own_tokens(inputs: Mapping[str, Any]) -> Tensor:
    """Tokens to learn from, (rows, tokens) bool: the model's own, without padding and tokens of environments."""
    mask = inputs["completion_mask"].bool()
    return mask & inputs["tool_mask"].bool() if "tool_mask" in inputs else mask


class TeachingRowsTrainer(GRPOTrainer):
    """A GRPOTrainer whose backward pass skips rows without an advantage.

    This is off if every row has a gradient anyway (KL penalty, entropy bonus, load-balancing loss), and with a sharded
    model, whose processes must all make the same number of passes.
    """

    skips_rows = False
    row_order: Tensor | None = None
    """Position of each micro-batch row among the rows that went through the model, if the order differs."""
    _teaching: Tensor | None = None

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        advantages = inputs["advantages"]
        teaching = (advantages != 0).reshape(len(advantages), -1).any(1) & own_tokens(inputs).any(1)
        others = self.beta or self._entropy_bonus_enabled or self.aux_loss_enabled
        # processes wait for each other's gradients, so each pass needs a row with a gradient
        alone = distributed.world_size() == 1
        if self.skips_rows and model.training and not others and not teaching.all() and (alone or teaching.any()):
            self._teaching = teaching
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self._teaching = None

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Compute rows with an advantage with a graph and the others without, then restore their order."""
        whole = super()._get_per_token_logps_and_entropies
        teaching, self.row_order = self._teaching, None
        if teaching is None:
            return whole(model, input_ids, attention_mask, *args, **kwargs)
        rows, rest = teaching.nonzero().flatten(), (~teaching).nonzero().flatten()
        taught = whole(model, input_ids[rows], attention_mask[rows], *args, **kwargs) if len(rows) else None
        with torch.no_grad():  # bypasses the wrapper, which would wait for other processes, whose rows may differ
            alone = self.accelerator.unwrap_model(model)
            untaught = whole(alone, input_ids[rest], attention_mask[rest], *args, **kwargs)
        if taught is None:
            return untaught[0] + _nothing(alone), untaught[1], None
        self.row_order = order = torch.cat([rows, rest]).argsort()
        logps, entropies = (torch.cat([one, other])[order] for one, other in zip(taught[:2], untaught[:2], strict=True))
        return logps, entropies, None


def _nothing(model: torch.nn.Module) -> Tensor:
    """A loss of 0 with a gradient of 0 for each weight."""
    return torch.stack([0 * weight.sum() for weight in model.parameters() if weight.requires_grad]).sum()


class JudgedTrainer(TeachingRowsTrainer):
    """A GRPOTrainer with our rewards and advantages."""

    batches: Batches
    weights: Sequence[float]
    """Weights of the rewards, in order."""
    leave_one_out = True
    overlong: tuple[int, int, float] = (0, 0, 0.0)
    """Most tokens of a completion, and length and penalty of the buffer at their end."""
    rows: Sequence[int] = ()
    """What is being sampled: indices into the step's completions, or of validation rows."""
    turn: tuple[int, ...] = ()
    """Index of the turn in an episode; empty if prompts have a single answer."""
    _rewards = np.empty((0, 0))
    """Rewards of the latest completions of all processes, (completions, rewards) float64."""
    _penalties = np.empty((0, 1))
    """What is added to these for the completions' lengths, (completions, 1) float64, 0 or less."""
    prompts: Mapping[str, Prompt]
    """Prompts by the names in the rows."""
    judges: Mapping[str, Judge]
    """The rewards by name."""
    whole_rows: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    """Prepared rows by the names in the rows, if a reward asks for them."""
    scorer: Callable[[Sequence[Sequence[int]]], list[float]]
    """Scores of conversations from their ids, for the reward `model`."""
    learns_from_rewards = True
    """Whether advantages mean anything; the teacher of a distillation is learnt from instead."""
    sampled: list[Batch]
    """What the current step has sampled so far."""
    _answers: Sequence[Answer] = ()
    """This process's latest completions."""
    rehearses: ClassVar[bool] = False
    """See `rehearsing`: every second completion has a higher reward, and rewards of other packages are not called."""

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        """Ids of each prompt, without inputs for vision models."""
        return [self.prompts[name].ids for name in prompts], None, {}

    def _calculate_rewards(self, inputs: Any, prompts: list[str], completions: list[str], ids: Any) -> Tensor:
        """The rewards of all processes' completions, (completions, rewards)."""
        expected = [row["expected"] for row in inputs]
        judged = self._judged(prompts, completions, expected, ids)
        self._answers = [self._answer(*one) for one in enumerate(zip(prompts, completions, expected, ids, strict=True))]
        penalties = overlong_penalty([len(one) for one in ids], *self.overlong)
        found = torch.from_numpy(np.column_stack([judged, penalties])).to(self.accelerator.device)
        gathered = self.accelerator.gather(found)
        self._rewards, self._penalties = np.split(gathered.cpu().numpy(), [-1], axis=1)
        if self.rehearses:
            counts = next(place for place, weight in enumerate(self.weights) if weight)
            self._rewards[:, counts] += np.arange(len(self._rewards)) % 2
        return gathered[:, :-1].float()

    def _answer(self, place: int, sampled: tuple[str, str, str | None, Any]) -> Answer:
        """One of this process's completions, from the prompt's name, text, expected answer and ids."""
        name, completion, expected, ids = sampled
        ended = "stopped" if len(ids) and ids[-1] in self.eos_token_ids else "cut"
        return Answer(self.prompts[name].text, completion, expected, len(ids), ended)

    def _judged(self, prompts: list[str], completions: list[str], expected: list[Any], ids: list[Any]) -> np.ndarray:
        asked = [self.prompts[name] for name in prompts]
        whole = [self.whole_rows.get(name, NO_ROW) for name in prompts]
        texts = [prompt.text for prompt in asked]

        def judged(name: str) -> list[float]:
            if name == MODEL:
                return self.scorer([[*prompt.ids, *own] for prompt, own in zip(asked, ids, strict=True)])
            said = map(self._with_control_tokens, ids) if self.judges[name].reads_control_tokens else completions
            answers = zip(map(whole_answer, texts, said), expected, texts, whole, strict=True)
            return [self._rewarded(name, *answer) for answer in answers]

        return np.array([judged(name) for name in self.reward_func_names]).T

    def _with_control_tokens(self, ids: Any) -> str:
        """The text of a completion, without the token that ends it."""
        own, tokenizer = [int(token) for token in ids], self.processing_class
        while own and own[-1] in self.eos_token_ids:
            own.pop()
        return str(tokenizer.decode(own, skip_special_tokens=False))  # ty: ignore[missing-union-attribute]

    def _rewarded(self, name: str, answer: str, expected: str | None, prompt: str, row: Mapping[str, Any]) -> float:
        judge = self.judges[name]
        if not self.rehearses:
            return judge.score(answer, expected, prompt, row)
        try:
            return 0.0 if judge.is_of_a_package else judge.score(answer, expected, prompt, row)
        except UserError as error:
            raise UserError(
                f"{error.message}; this answer is noise, of a rehearsal's random weights", error.remedy
            ) from error

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        """Sample the completions of a batch, and add our advantages."""
        found = super()._generate_and_score_completions(inputs)
        processes = distributed.world_size()
        order = np.concatenate([self.batches.rows_of(process, processes) for process in range(processes)])
        in_batch_order = np.argsort(order)
        self._rewards, self._penalties = self._rewards[in_batch_order], self._penalties[in_batch_order]
        grouped = self._grouped(self._rewards, self._penalties)
        normalize = self.scale_rewards == "group"
        advantages = advantages_of(grouped, leave_one_out=self.leave_one_out, normalize=normalize).ravel()
        found["advantages"] = torch.from_numpy(advantages[self.rows]).to(found["advantages"])
        self.sampled.append(Batch(self.rows, self._answers, self._rewards, grouped.ravel(), advantages))
        return found

    def _grouped(self, rewards: np.ndarray, penalties: np.ndarray | float = 0.0) -> np.ndarray:
        """The weighted sums of rewards, in batch order, by group, with `penalties`: (groups, completions)."""
        return (self._summed(rewards)[:, None] + penalties).reshape(-1, self.batches.completions)

    def _summed(self, rewards: np.ndarray) -> np.ndarray:
        """Weighted sum of each completion's rewards; equal rewards give equal sums."""
        return np.array(
            [math.fsum(weight * one for weight, one in zip(self.weights, row, strict=True)) for row in rewards]
        )

    def _figures(self, rewards: np.ndarray, penalties: np.ndarray) -> dict[str, float]:
        """Figures of everything that a step sampled, under TRL's names.

        Rewards are those before the penalties; advantages, and so their share that is 0, come of both.
        """
        grouped = self._grouped(rewards)
        spread, judged = (_spreads(one) for one in (grouped, self._grouped(rewards, penalties)))
        means = {
            f"rewards/{name}/mean": _mean(one) for name, one in zip(self.reward_func_names, rewards.T, strict=True)
        }
        return {
            "reward": float(grouped[~np.isnan(grouped)].mean()),
            "reward_std": float(spread.mean()),
            "frac_reward_zero_std": float((judged == 0).mean()),
        } | means

    def _note(self, mode: str, **figures: float) -> None:
        """Replace TRL's figures with these."""
        self._metrics[mode].update({name: [value] for name, value in figures.items()})

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        """Sample one completion per row and average the rewards, independent of the number of passes and processes.

        Every process makes the same number of passes: one without rows left samples the last row again, uncounted.
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
        reward = _mean(self._summed(whole.cpu().numpy()))
        metrics = {} if math.isnan(reward) else {f"{metric_key_prefix}_reward": reward}
        return EvalLoopOutput(predictions=np.empty(0), label_ids=None, metrics=metrics, num_samples=len(rows))

    def _answered(self, rows: list[dict[str, str]], numbers: list[int]) -> np.ndarray:
        """Rewards of one completion per row."""
        self.rows = numbers
        prompts, tokenizer = [row["prompt"] for row in rows], self.processing_class
        ids, _, _ = self._tokenize_prompts(prompts)
        completions, _ = self._generate_single_turn(ids, None, {}, 1)
        texts = tokenizer.batch_decode(completions, skip_special_tokens=True)  # ty: ignore[missing-union-attribute]
        return self._judged(prompts, texts, [row["expected"] for row in rows], completions)


def _spreads(grouped: np.ndarray) -> np.ndarray:
    """Standard deviation of each group (groups, completions) that has a value, over those that are not NaN."""
    return np.array([mean_and_spread(group[~np.isnan(group)])[1] for group in grouped if not np.isnan(group).all()])


def _mean(values: np.ndarray) -> float:
    """Correctly rounded mean of the values that are not NaN, independent of their order."""
    there = values[~np.isnan(values)]
    return math.fsum(there) / there.size if there.size else math.nan


class StepTrainer(JudgedTrainer):
    """A GRPOTrainer that picks prompts by step number."""

    seed = 0
    most_batches = 0
    """Batches that a step may sample to find prompts whose completions differ in reward; 0: it takes its own batch."""
    drawn_before = 0
    """Completions that the step has sampled before the current batch."""
    may_be_given_up: bool
    say: Callable[[str], None]
    """Prints one line."""
    most_kept = 0
    """Completions of a step to keep."""
    log_of_completions: CompletionsLog
    silence: Silence
    likeness: Likeness
    steps_with: Counter[bool]
    """Number of this attempt's steps in which some completions of a group had different rewards, and of the others."""
    _said = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._passes: list[dict[str, Any]] = []
        self.steps_with = Counter()

    @property
    def passes(self) -> int:
        """Passes per step."""
        return self.args.gradient_accumulation_steps

    @property
    def passes_of_update(self) -> int:
        """Passes per update of the weights."""
        return self.passes // self.batches.updates

    @property
    def next_pass(self) -> int:
        """Index of the current pass in its step. TRL counts this process's passes, from the start of a step."""
        return self._step % self.passes

    @property
    def is_first_update(self) -> bool:
        """Whether the weights are still those that sampled the batch."""
        return self.next_pass < self.passes_of_update

    def get_train_dataloader(self) -> DataLoader:
        """One item per pass, without prompts: the step number alone determines those."""
        ticks: Any = range(self.args.max_steps * self.passes * distributed.world_size())
        sampler: Any = SequentialSampler
        return self._get_dataloader(ticks, "Training", 1, sampler_fn=sampler, is_training=True)

    def _prepare_inputs(self, inputs: Any) -> dict[str, Any]:
        """Completions of the next pass."""
        if self.next_pass == 0:
            self._passes = self._sampled()
        return self._passes[self.next_pass]

    def _sampled(self) -> list[dict[str, Any]]:
        """Completions of a step, by pass."""
        step, batches, self.sampled = self.state.global_step, self.batches, []
        found = self._answered_apart(step) if self.most_batches else self._answered_batch(step)
        self._note("train", **self._figures(self._rewards, self._penalties))
        self._note_variety(step + 1)
        self._keep(step + 1)
        teaching = self.accelerator.reduce(found["advantages"].count_nonzero(), reduction="sum")
        self.steps_with[bool(teaching)] += 1
        size = len(self.rows) // self.passes
        made = [
            {name: _part(value, number * size, size) for name, value in found.items()} for number in range(self.passes)
        ]
        tokens = torch.stack([own_tokens(one).sum() for one in made]).view(batches.updates, -1).sum(1)
        tokens = self.accelerator.reduce(tokens, reduction="sum")
        if not tokens.any() and not self._said:
            self._said = True
            cut = f"all {batches.per_step * batches.completions} completions were cut at {self.max_completion_length}"
            self.say(f"step {step + 1}: {cut} tokens and excluded (grpo.overlong_filtering), so it trains nothing")
        for number, one in enumerate(made):  # the loss is a mean over the tokens of its update
            one["num_items_in_batch"] = tokens[number // self.passes_of_update]
        return made

    def _note_variety(self, step: int) -> None:
        """Share of different ones among the step's completions, and a warning where they stay few; collective.

        Episodes that failed are left out, as they are of the reward.
        """
        answers = [answer for batch in self.sampled for answer in batch.answers if answer.ended != "failed"]
        completions = gather_object([Compared.of(answer) for answer in answers])
        if not completions:
            return
        self._note("train", distinct_completions=len({one.written for one in completions}) / len(completions))
        if self.learns_from_rewards and not self.rehearses:
            self.likeness.hear(step, completions)

    def _keep(self, step: int) -> None:
        """Keep a few completions of the step, and tell if a reward has never fired; collective."""
        if self.rehearses:
            return
        names, found = self.reward_func_names, []
        if self.most_kept and is_kept(step):
            found = kept(step, self.sampled, names, self.most_kept, self.processing_class)
            if not self.learns_from_rewards:
                found = [one.model_copy(update={"advantage": None}) for one in found]
        if distributed.rank() != 0:
            return
        if found:
            self.log_of_completions.append(step, found)
        cut = self._metrics["train"].get("completions/clipped_ratio") or [0.0]
        rewards = np.concatenate([batch.rewards for batch in self.sampled])
        counted = np.flatnonzero(np.array(self.weights))
        self.silence.hear(rewards[:, counted], found[-1] if found else None, cut[-1])

    def _answered_batch(self, step: int, further: int = 0) -> dict[str, Any]:
        """Completions of this process for the prompts of a step, or of the one that comes `further` steps after it."""
        self.begin_to_draw(*((step, further) if further else (step,)))
        self.rows = self.batches.rows_of(distributed.rank(), distributed.world_size())
        self.drawn_before = further * self.batches.per_step * self.batches.completions
        rows: Any = self.train_dataset
        prompts = [rows[number] for number in self.batches.asked(step + further)]
        return self._generate_and_score_completions([prompts[row // self.batches.completions] for row in self.rows])

    def _answered_apart(self, step: int) -> dict[str, Any]:
        """Completions of as many prompts as a step takes whose completions differ in reward (dynamic sampling).

        Further batches are those of the next steps, which ask them again: what a step learns from depends on its number
        and the weights alone, so a resumed run needs no record of the prompts that were used up.

        Raises:
            UserError: the batches that may be sampled have too few such prompts.
        """
        kept, sampled, completions = list[dict[str, Any]](), list[list[np.ndarray]](), self.batches.completions
        wanted, there = self.batches.per_step * completions, 0
        while there < wanted:
            if len(kept) == self.most_batches:
                asked, differing = len(kept) * self.batches.per_step, there // completions
                what = f"step {step + 1}: the completions of {differing} of {asked} prompts differ in reward"
                raise UserError(
                    f"{what}, and a step takes {self.batches.per_step}",
                    "ask questions that are neither too easy nor too hard, raise "
                    "grpo.dynamic_sampling_max_gen_batches, or set grpo.use_dynamic_sampling=false",
                )
            found = self._answered_batch(step, len(kept))
            apart = np.repeat(mean_and_spread(self._grouped(self._rewards))[1] > 0, completions)
            chosen = torch.from_numpy(apart.nonzero()[0][: wanted - there]).to(found["advantages"].device)
            kept.append({name: _chosen(value, chosen) for name, value in found.items()})
            sampled.append([self._rewards, self._penalties])
            there += len(chosen)
        self._rewards, self._penalties = map(np.concatenate, zip(*sampled, strict=True))
        self.drawn_before = 0
        self._note("train", dynamic_sampling_num_gen_batches=len(kept))
        tokenizer: Any = self.processing_class
        padding = dict.fromkeys(("prompt_ids", "completion_ids"), tokenizer.pad_token_id)
        return {name: _joined([one[name] for one in kept], name, padding.get(name, 0)) for name in kept[0]}

    def begin_to_draw(self, *what: int) -> None:
        """Reseed torch's generators, so later samples do not depend on earlier ones."""
        key = [self.seed, *what, distributed.rank()]
        torch.manual_seed(int(np.random.default_rng(key).integers(1 << 63)))

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """The loss of a pass. TRL divides a mean over completions by the passes of a step, and not of an update."""
        loss = super()._compute_loss(model, inputs)
        return loss if self.loss_type in ("dapo", "cispo") else loss * self.batches.updates

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Run one pass, and the update after the last pass of one; the Trainer itself makes a step's last update."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self.next_pass and self.next_pass % self.passes_of_update == 0:
            self._update(model)
        self.may_be_given_up = self.is_first_update  # for the next pass
        return loss / self.batches.updates  # the log sums the passes of a step

    def _update(self, model: Any) -> None:
        """Update the weights within a step; the processes' gradients are not yet summed here."""
        if (processes := distributed.world_size()) > 1:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    torch.distributed.all_reduce(parameter.grad)
                    parameter.grad /= processes
        self._clip_grad_norm(model)
        optimizer: Any = self.optimizer.optimizer  # ty: ignore[missing-union-attribute]  # accelerate's wrapper would wait for the end of the step
        optimizer.step()
        optimizer.zero_grad()


def _chosen(value: Any, rows: Tensor) -> Any:
    return value[rows] if isinstance(value, Tensor) and value.dim() else value


def _joined(values: list[Any], name: str, padding: int) -> Any:
    """The rows of several batches, padded like TRL pads them: prompts on the left, what follows them on the right."""
    if not (isinstance(values[0], Tensor) and values[0].dim()):
        return values[0]
    if values[0].dim() == 1:
        return torch.cat(values)
    longest = max(value.shape[1] for value in values)
    sides = [(longest - value.shape[1], 0) if name.startswith("prompt_") else (0, longest - value.shape[1])
             for value in values]  # fmt: skip
    return torch.cat([functional.pad(value, side, value=padding) for value, side in zip(values, sides, strict=True)])


def _part(value: Any, first: int, size: int) -> Any:
    return value[first : first + size] if isinstance(value, Tensor) and value.dim() else value
