"""Make a reward model of pairs of a better and a worse answer with TRL's RewardTrainer, and score answers with it.

    ids    11 12 13 21 22  2      of the better conversation
                           ^      its reward, at the token that ends the answer

The loss of a pair is that of the README.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel

from nemotron_data.chat.shown import learnt_end
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_engines.modeling.scoring import load_scoring, score_of, with_score
from nemotron_engines.transformers.trainer import train_to_end, trainer_settings
from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.system.errors import UserError
from stages.rl.engines.trl.library import RewardConfig, RewardTrainer
from stages.rl.engines.trl.pairs import RESULTS, PairTrainer, given
from stages.rl.engines.trl.starting import load_beginning, require_same_vocabulary
from stages.rl.pairs import CHOSEN, REJECTED
from stages.rl.schema import RLConfig, TRLEngine

BEFORE = "valid_pair_accuracy_before"
"""Share of the validation pairs that the random score tells apart, in the manifest."""


class RewardPairTrainer(PairTrainer, RewardTrainer):
    """A RewardTrainer with our rows."""

    figures = ("accuracy", "margin")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # the other one leaves out, at the end of the data, the means of some processes as if they were of repeated rows
        accelerator: Any = self.accelerator
        accelerator.gather_for_metrics = accelerator.gather

    @staticmethod
    def collate(rows: Sequence[Mapping[str, list[int]]]) -> dict[str, Tensor]:
        """As for DPO, without the mask of the tokens that DPO learns."""
        return {name: value for name, value in PairTrainer.collate(rows).items() if name != "completion_mask"}

    def class_of_model(self) -> Any:
        """The class that loads a checkpoint."""
        return type(self.model)

    def told_apart(self) -> float:
        """Share of the validation pairs whose better answer has the higher reward now."""
        self.evaluation_loop()
        found = self._means("eval")
        self._metrics["eval"].clear()
        return found[self.figures[0]]


def make_reward_model(task: Task[RLConfig[TRLEngine]]) -> Outcome:
    """Raise the reward of the better answers over that of the worse ones."""
    config, run = task.config, task.run
    section = config.reward_modeling
    assert section is not None, "the engine chose this method"
    begun = load_beginning(task)
    end = end_of_answers(begun.folder)
    others = given(task, begun, lambda rows: up_to_the_end(rows, end))
    valid = others["eval_dataset"]
    trainer = RewardPairTrainer(
        model=with_score(begun.model, config.run.seed),
        args=RewardConfig(
            **trainer_settings(config, run, validate=valid is not None),
            center_rewards_coefficient=section.center_rewards_coefficient or None,
            max_length=None,
            disable_dropout=False,  # there is none
        ),
        **others,
    )
    trainer.seed = config.run.seed
    described = trainer.model.config.get_text_config()
    if described.pad_token_id in {row[name][-1] for row in others["train_dataset"] for name in (CHOSEN, REJECTED)}:
        # a program that looks for padding would read the token before the last; the Trainer asks the tokenizer again
        described.pad_token_id = begun.tokenizer.pad_token = None
    before = {}
    if valid is not None:
        before[BEFORE] = trainer.told_apart()
        run.say(f"the random score tells {before[BEFORE]:.0%} of {len(valid):,} validation pairs apart")
    made = train_to_end(trainer, config, run, begun.folder, RESULTS)
    return replace(made, metrics={**made.metrics, **before})


def end_of_answers(folder: Path) -> int | None:
    """The token with which the template of a tokenizer's folder closes an answer; None if it is closed by text."""
    tokenizer = TokenizerFolder(folder)
    template, found = tokenizer.own_template(), None
    if template is not None:
        with suppress(UserError):
            found = learnt_end(template, f"the chat template of {folder}", tokenizer)
    return found.id if found else None


def up_to_the_end(rows: Dataset, end: int | None = None) -> Dataset:
    """Each conversation without what its template shows after the token that ends the answer.

    A line feed behind that token may be learnt, where a template has both in one piece (`<|im_end|>\\n`); sampled
    answers, which are scored later, end without it.

    Args:
        end: the token that ends answers; None, or none in an answer: the last that is learnt does.
    """

    def length(ids: list[int], mask: list[int]) -> int:
        learnt = [place for place, wanted in enumerate(mask) if wanted]
        return max([place for place in learnt if ids[place] == end] or learnt) + 1

    def cut(row: dict[str, list[int]]) -> dict[str, list[int]]:
        lengths = {name: length(row[name], row[f"{name}_mask"]) for name in (CHOSEN, REJECTED)}
        return {name: values[: lengths[name.removesuffix("_mask")]] for name, values in row.items()}

    return Dataset.from_list([cut(row) for row in rows])


class Scorer:
    """The reward `model`: scores of answers by the model in `run.reward_model`.

    Raises:
        UserError: its vocabulary is not that of `policy`.
    """

    def __init__(self, task: Task[RLConfig[TRLEngine]], policy: PreTrainedModel, tokenizer: Any) -> None:
        found = task.input("reward_model")
        self.model = load_scoring(found.path, task.config.engine)
        require_same_vocabulary("reward_model", found, self.model, policy, tokenizer)
        self.model.to(policy.device)

    def __call__(self, conversations: Sequence[Sequence[int]]) -> list[float]:
        """The score of each, from its ids; equal ones are scored once."""
        known = {ids: score_of(self.model, list(ids)) for ids in dict.fromkeys(map(tuple, conversations))}
        return [known[tuple(ids)] for ids in conversations]
