"""What the methods that learn from pairs of a better and a worse answer share: rows, batches, order and figures.

    {"prompt": [a question], "chosen": [an answer], "rejected": [a worse one]}
->  ids    11 12 13 21 22  2      11 12 13 25  2      of the two conversations
    mask    0  0  0  1  1  1       0  0  0  1  1      what fine-tuning would learn of the answers

Pairs are read in an order that depends on the seed alone, so that a resumed run continues with the pairs of an
uninterrupted one.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Sampler
from transformers.trainer_utils import EvalLoopOutput

from nemotron_data.chat.prompt import Prompter
from nemotron_data.chat.shown import told
from nemotron_engines.estimate.training import ANSWER_TOKENS
from nemotron_engines.rows import order_of_epoch
from nemotron_engines.transformers.trainer import StageTrainer, callbacks
from nemotron_shared.engine.spec import Task
from nemotron_shared.system import distributed
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.metrics import Metric
from stages.rl.engines.trl.starting import Beginning
from stages.rl.pairs import CHOSEN, REJECTED, read_pairs
from stages.rl.schema import RLConfig, TRLEngine

RESULTS: dict[Metric, str] = {
    "loss": "final_loss", "valid_loss": "valid_loss", "valid_pair_accuracy": "valid_pair_accuracy",
}  # fmt: skip
"""Metrics of the manifest, with their names there."""


class Shuffled(Sampler[int]):
    """Numbers of `rows` pairs of `count`, in another order in every epoch."""

    def __init__(self, count: int, rows: int, seed: int) -> None:
        self.count, self.rows, self.seed = count, rows, seed

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[int]:
        for row in range(self.rows):
            epoch, place = divmod(row, self.count)
            yield int(order_of_epoch(self.seed, epoch, self.count)[place])


class PairTrainer(StageTrainer):
    """Our rows, schedule, resuming and stopping, to be mixed with one of TRL's trainers on pairs."""

    figures: ClassVar[tuple[str, ...]]
    """TRL's names of the means over pairs that are logged; that of the pairs told apart is the first."""
    seed = 0
    model: Any
    args: Any
    train_dataset: Any
    eval_dataset: Any
    _metrics: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, data_collator=self.collate, **kwargs)
        self._pairs: dict[str, list[int]] = {"train": [], "eval": []}

    @staticmethod
    def collate(rows: Sequence[Mapping[str, list[int]]]) -> dict[str, Tensor]:
        """Batch as TRL wants it: the better answers, then the worse ones; (2 x pairs, tokens), padded on the right."""
        ids, masks = (
            [torch.tensor(row[name + suffix]) for name in (CHOSEN, REJECTED) for row in rows]
            for suffix in ("", "_mask")
        )
        return {
            "input_ids": pad_sequence(ids, batch_first=True),
            "attention_mask": pad_sequence([torch.ones_like(one) for one in ids], batch_first=True),
            "completion_mask": pad_sequence(masks, batch_first=True),
        }

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """The rows as they are: TRL would render and cut them in its own way."""
        return dataset

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        return Shuffled(len(self.train_dataset), self.args.max_steps * self.stage_config.rows_per_step, self.seed)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """TRL's loss of a batch, whose pairs are counted."""
        self._pairs["train" if model.training else "eval"].append(len(inputs["input_ids"]) // 2)
        return super().compute_loss(model, inputs, *args, **kwargs)  # ty: ignore[missing-attribute]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log means over pairs; TRL's are means over batches, of which the last may be short."""
        mode = "train" if self.model.training else "eval"
        self._metrics[mode].update({name: [mean] for name, mean in self._means(mode).items()})
        self._metrics[mode].pop("entropy", None)  # of given answers, and not of sampled ones
        super().log(logs, start_time)  # ty: ignore[missing-attribute]

    def _means(self, mode: str) -> dict[str, float]:
        """The figures of the batches since the last call."""
        pairs, self._pairs[mode] = self._pairs[mode], []
        names = self.figures if pairs else ()
        each = {name: map(float.__mul__, self._metrics[mode][name], map(float, pairs)) for name in names}
        return {name: math.fsum(values) / sum(pairs) for name, values in each.items()}

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        """The mean loss of the validation pairs. Every process computes all of these few, so their number of processes
        and of passes changes nothing.
        """
        trainer: Any = self
        rows, size, losses = self.eval_dataset, self.args.per_device_eval_batch_size, []
        self.model.eval()
        for first in range(0, len(rows), size):
            batch = self.collate(list(rows.select(range(first, min(first + size, len(rows))))))
            with torch.no_grad(), trainer.compute_loss_context_manager():
                loss = self.compute_loss(self.model, trainer._prepare_inputs(batch))
            losses.append(float(loss) * (len(batch["input_ids"]) // 2))
        metrics = {f"{metric_key_prefix}_loss": math.fsum(losses) / len(rows)}
        return EvalLoopOutput(predictions=np.empty(0), label_ids=None, metrics=metrics, num_samples=len(rows))

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no card: manifests record lineage."""


def given(
    task: Task[RLConfig[TRLEngine]], begun: Beginning, change: Callable[[Dataset], Dataset] = lambda rows: rows
) -> dict[str, Any]:
    """Arguments of a trainer besides its model and settings: the pairs, of which validation ones may be missing.

    Args:
        change: what the method makes of encoded pairs.
    """
    data, say = task.input("data").path, task.run.say
    valid, most = data / "val.jsonl", task.config.train.eval_rows
    context = getattr(begun.model.config.get_text_config(), "max_position_embeddings", None)
    pairs, longest = encoded(data / "train.jsonl", begun.prompter, say, context=context)
    micro = task.config.micro_rows(distributed.world_size())
    if longest > ANSWER_TOKENS and micro > 1:
        what = f"up to {longest:,} tokens an answer with its prompt, and {micro} pairs a pass"
        say(f"{what}: if memory does not suffice, lower train.micro_batch_size")
    return {
        "train_dataset": change(pairs),
        "eval_dataset": change(encoded(valid, begun.prompter, say, most, context)[0]) if valid.is_file() else None,
        "processing_class": begun.tokenizer,
        "peft_config": begun.adapters,
        "callbacks": callbacks(task.config, task.run, None),
    }


def encoded(
    file: Path, prompter: Prompter, say: Callable[[str], None], most: int | None = None, context: int | None = None
) -> tuple[Dataset, int]:
    """The first `most` pairs of a prepared file, each as ids and masks of its two conversations, and the tokens of the
    longest conversation.

    Args:
        say: prints a line, about parts of answers that the chat template does not show.
        context: the most tokens that the model reads; None if it has no limit.

    Raises:
        UserError: naming file and line: a row that is not a pair, that the chat template does not fit, or that is too
            long.
    """
    rows, longest, hidden, too_long = [], 0, Counter[tuple[str, ...]](), list[str]()
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
        length = max(len(row[CHOSEN]), len(row[REJECTED]))
        longest = max(longest, length)
        if context is not None and length > context:
            too_long.append(f"{place}: {length:,} tokens exceed the model's context of {context:,}")
    if too_long:
        remedy = "shorten such rows of data_prep.source or leave them out, or take a model with a longer context"
        raise UserError(f"{too_long[0]}; in all, {len(too_long):,} of {len(rows):,} pairs are too long", remedy)
    for kinds, count in hidden.items():
        if kinds:
            say(f"WARNING: {file.name}: {told(kinds)}: {count:,} of {2 * len(rows):,} answers lose theirs")
    return Dataset.from_list(rows), longest
