"""Train on pairs of a better and a worse answer with TRL's DPOTrainer.

    {"prompt": [a question], "chosen": [an answer], "rejected": [a worse one]}
->  ids    11 12 13 21 22  2      11 12 13 25  2      of the two conversations
    mask    0  0  0  1  1  1       0  0  0  1  1      what fine-tuning would learn of the answers

The loss of a pair is that of the README. Pairs are read in an order that depends on the seed alone, so that a resumed
run continues with the pairs of an uninterrupted one.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Sampler
from transformers.trainer_utils import EvalLoopOutput

from nemotron_data.chat.prompt import Prompter
from nemotron_data.chat.shown import told
from nemotron_engines.lora.adapt import mamba_out_allowed
from nemotron_engines.rows import order_of_epoch
from nemotron_engines.transformers.trainer import StageTrainer, callbacks, train_to_end, trainer_settings
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.metrics import Metric
from nemotron_shared.runtime.spec import Outcome, Task
from stages.rl.engines.trl.library import DPOConfig, DPOTrainer
from stages.rl.engines.trl.starting import load_beginning
from stages.rl.pairs import CHOSEN, REJECTED, read_pairs
from stages.rl.schema import RLConfig, TRLEngine

RESULTS: dict[Metric, str] = {
    "loss": "final_loss", "valid_loss": "valid_loss", "valid_pair_accuracy": "valid_pair_accuracy",
}  # fmt: skip
"""Metrics of the manifest, with their names there."""
FIGURES = ("rewards/accuracies", "rewards/margins")
"""TRL's names of the means over pairs that are logged."""


class Shuffled(Sampler[int]):
    """Numbers of `rows` pairs of `count`, in an order of its own for every epoch."""

    def __init__(self, count: int, rows: int, seed: int) -> None:
        self.count, self.rows, self.seed = count, rows, seed

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[int]:
        for row in range(self.rows):
            epoch, place = divmod(row, self.count)
            yield int(order_of_epoch(self.seed, epoch, self.count)[place])


class PairTrainer(StageTrainer, DPOTrainer):
    """A DPOTrainer with our rows, schedule, resuming and stopping."""

    seed = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pairs: dict[str, list[int]] = {"train": [], "eval": []}

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """The rows as they are: TRL would render and cut them in its own way."""
        return dataset

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        rows: Any = self.train_dataset
        return Shuffled(len(rows), self.args.max_steps * self.stage_config.rows_per_step, self.seed)

    def _compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool) -> Any:
        self._pairs["train" if model.training else "eval"].append(len(inputs["input_ids"]) // 2)
        return super()._compute_loss(model, inputs, return_outputs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log means over pairs; TRL's are means over batches, of which the last may be short."""
        model: Any = self.model
        mode = "train" if model.training else "eval"
        pairs, self._pairs[mode] = self._pairs[mode], []
        for name in FIGURES if pairs else ():
            means = self._metrics[mode][name]
            self._metrics[mode][name] = [math.fsum(map(float.__mul__, means, map(float, pairs))) / sum(pairs)]
        self._metrics[mode].pop("entropy", None)  # of given answers, and not of sampled ones
        super().log(logs, start_time)

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        """The mean loss of the validation pairs. Every process computes all of these few, so their number of processes
        and of passes changes nothing.
        """
        model: Any = self.model
        rows: Any = self.eval_dataset
        size, losses = self.args.per_device_eval_batch_size, []
        model.eval()
        for first in range(0, len(rows), size):
            batch = self._prepare_inputs(collate(list(rows.select(range(first, min(first + size, len(rows)))))))
            with torch.no_grad(), self.compute_loss_context_manager():
                losses.append(float(self.compute_loss(model, batch)) * (len(batch["input_ids"]) // 2))
        metrics = {f"{metric_key_prefix}_loss": math.fsum(losses) / len(rows)}
        return EvalLoopOutput(predictions=np.empty(0), label_ids=None, metrics=metrics, num_samples=len(rows))

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no card: manifests record lineage."""


def train_on_pairs(task: Task[RLConfig[TRLEngine]]) -> Outcome:
    """Raise the probability of the better answers over that of the worse ones, relative to the starting model."""
    config, run = task.config, task.run
    assert config.dpo is not None, "the engine chose this method"
    begun, data = load_beginning(task), task.input("data").path
    rows, valid = encoded(data / "train.jsonl", begun.prompter, run.say), None
    if (data / "val.jsonl").is_file():
        valid = encoded(data / "val.jsonl", begun.prompter, run.say, config.train.eval_rows)
    with mamba_out_allowed():
        trainer = PairTrainer(
            model=begun.model,
            ref_model=begun.reference(task),
            args=DPOConfig(
                **trainer_settings(config, run, validate=valid is not None),
                beta=config.dpo.reference_policy_kl_penalty,
                loss_type=["sigmoid_norm" if config.dpo.preference_average_log_probs else "sigmoid"],
                max_length=None,
            ),
            data_collator=collate,
            train_dataset=rows,
            eval_dataset=valid,
            processing_class=begun.tokenizer,
            peft_config=begun.adapters,
            callbacks=callbacks(config, run, None),
        )
    trainer.seed = config.run.seed
    return train_to_end(trainer, config, run, begun.folder, RESULTS)


def encoded(file: Path, prompter: Prompter, say: Callable[[str], None], most: int | None = None) -> Dataset:
    """The first `most` pairs of a prepared file, each as ids and masks of its two conversations.

    Args:
        say: prints a line, about parts of answers that the chat template does not show.

    Raises:
        UserError: naming file and line: a row that is no pair, or that the chat template does not fit.
    """
    rows, hidden = [], Counter[tuple[str, ...]]()
    for place, pair in read_pairs(file):
        if len(rows) == most:
            break
        # answers within the prompt are not to be learnt
        asked = [{**turn, "weight": 0} if turn["role"] == "assistant" else turn for turn in pair.prompt]
        row = {}
        for name, answer in ((CHOSEN, pair.chosen), (REJECTED, pair.rejected)):
            try:
                ids, mask = prompter.answered([*asked, *answer], pair.tools)
            except UserError as error:
                raise UserError(f"{place}: {name}: {error.message}", error.remedy) from error
            if not any(mask):
                raise UserError(f"{place}: {name}: the chat template shows nothing of the answer", "leave the row out")
            row |= {name: ids, f"{name}_mask": mask}
            hidden[prompter.hidden([*asked, *answer], pair.tools, prompt=False)] += 1
        rows.append(row)
    for kinds, count in hidden.items():
        if kinds:
            say(f"WARNING: {file.name}: {told(kinds)}: {count:,} of {2 * len(rows):,} answers lose theirs")
    return Dataset.from_list(rows)


def collate(rows: Sequence[dict[str, list[int]]]) -> dict[str, Tensor]:
    """Batch as TRL wants it: the better answers, then the worse ones; each (2 x pairs, tokens), padded on the right."""
    ids, masks = (
        [torch.tensor(row[name + suffix]) for name in (CHOSEN, REJECTED) for row in rows] for suffix in ("", "_mask")
    )
    return {
        "input_ids": pad_sequence(ids, batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(one) for one in ids], batch_first=True),
        "completion_mask": pad_sequence(masks, batch_first=True),
    }
