"""Choose settings that suit a model and a machine: weights to train, learning rate, batch and number of steps.

The learning rates are the usual ones for a model's size: our own for the tiny model, 1e-5 for billions of parameters,
and about ten times as much for adapters.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nemotron_engines.checks import RESULT_BYTES, TRAINING_BYTES, in_billions
from nemotron_engines.modeling.architecture import parameters_in
from nemotron_shared.config.files import Choice
from nemotron_shared.config.training import SupervisedConfig
from nemotron_shared.machine.machine import Machine
from nemotron_shared.models.folder import context_of
from nemotron_shared.system.disk import size

EPOCHS = 3
SMALL = 10_000_000
EPOCHS_OF_SMALL = ((1_000_000, 48), (SMALL, 24))
"""A model of fewer parameters than that needs so many epochs to know what is in the rows: it has seen too little text
to learn a fact from three. Measured with models below one million (`benchmarks/invented.py`)."""
LEAST_OF_SMALL, LEAST_OF_SMALL_ON_TEXT = 200, 500
"""Steps of such a model for a small file, where an epoch has few steps; more if every token is trained, not just the
answers."""
MOST_TOKENS_OF_SMALL = 4_000_000
"""Epochs beyond three end here, after minutes for a model of 0.3 million parameters on one core."""
LEAST_STEPS = 30
ROOM = 0.7
"""Share of the memory for weights, gradients and optimizer; activations get the rest."""
RATES = ((SMALL, 2e-3), (200_000_000, 3e-4), (2_000_000_000, 5e-5))
LARGE_RATE, ADAPTER_RATE = 1e-5, 2e-4
BATCHES = ((8, 4), (256, 8), (4096, 16))
LARGE_BATCH = 32
LORA = {"dim": 16, "alpha": 32, "dropout": 0.0, "layers": None, "target_modules": [], "exclude_modules": []}
SHORTEST, LONGEST = 128, 8192
TRANSFORMERS = "transformers"
"""The engine that can publish another step than the last."""


def power_of_two(tokens: int, model: Path) -> int:
    """A row length for this many tokens, up to the model's context length."""
    limit = context_of(model) or LONGEST
    length = SHORTEST
    while length < min(tokens, LONGEST, limit):
        length *= 2
    return min(length, limit)


IsSaid = Callable[[str], bool]
"""Whether a person has set the value of this key."""


def weight_choices(config: SupervisedConfig[Any], model: Path, machine: Machine, is_said: IsSaid) -> list[Choice]:
    """Choose the weights to train and their dtype: adapters if all weights do not fit into memory.

    Nothing is chosen where the config has adapters already, or switches them off.
    """
    if has_adapters(config) or is_said("engine.peft"):
        return []
    parameters = _parameters(model)
    memory = min((gpu.memory for gpu in machine.gpus), default=machine.memory)
    needed = TRAINING_BYTES * parameters
    if needed <= ROOM * memory:
        return []
    what = f"training all weights of {in_billions(parameters)} takes {size(needed)}, and {size(memory)} are available"
    frozen = f"the frozen weights take {size(RESULT_BYTES * parameters // 2)}"
    return [Choice("engine.peft", LORA, f"LoRA: {what}"), Choice("engine.dtype", "bfloat16", frozen)]


def has_adapters(config: SupervisedConfig[Any]) -> bool:
    """Whether a training keeps the model's weights and trains adapters, by the user's choice or by default."""
    peft = getattr(config.engine, "peft", None)
    return peft is not None and getattr(peft, "scheme", "lora") is not None  # Megatron-Bridge's section is always there


def _parameters(model: Path) -> int:
    known = parameters_in(model)
    return known.total if known else 0


def is_small(model: Path) -> bool:
    """Whether a model is so small that a training takes minutes."""
    return 0 < _parameters(model) < SMALL


def steps_for(parameters: int, rows: int, batch: int, row_tokens: int, *, text: bool = False) -> int:
    """Steps until a model of this size knows the rows.

    Args:
        row_tokens: tokens of a row, which decide how long an epoch takes.
        text: every token is learnt, and not the answers alone.
    """
    epoch = -(-rows // batch)
    if parameters >= SMALL:
        return max(EPOCHS * epoch, LEAST_STEPS)
    epochs = next(count for most, count in EPOCHS_OF_SMALL if parameters < most)
    least = LEAST_OF_SMALL_ON_TEXT if text else LEAST_OF_SMALL
    affordable = max(MOST_TOKENS_OF_SMALL // (batch * row_tokens), EPOCHS * epoch)
    return max(min(epochs * epoch, affordable), least)


def _publishing(parameters: int, *, text: bool) -> Choice:
    """Which step is published. Held-out rows say little about facts that stand in one row each: a small model, which
    sees its rows often, shall know them first."""
    if text or parameters >= SMALL:
        return Choice("checkpoint.publish_best", "always", "the step that validated best")
    return Choice("checkpoint.publish_best", "when_learnt", "the step that validated best, if it knew the taught rows")


def _epochs(count: float) -> str:
    return f"{count:.1f} epochs" if count < 10 else f"{count:.0f} epochs"


def training_choices(
    config: SupervisedConfig[Any],
    model: Path,
    rows: int,
    row_tokens: int,
    machine: Machine,
    of_what: str,
    is_said: IsSaid,
    *,
    text: bool = False,
) -> list[Choice]:
    """Settings for a training on `rows` rows of `row_tokens` tokens, called `of_what` in messages.

    Args:
        config: with the values that a person has set, to which the choices are fitted: the rate to `engine.peft`, the
            steps to the batch, warm-up and intervals to the steps.
        text: continued pretraining of all weights.
    """
    parameters = _parameters(model)
    found = [] if text else weight_choices(config, model, machine, is_said)
    lora = has_adapters(config) or bool(found)
    batch = next((count for most, count in BATCHES if rows < most), LARGE_BATCH)
    batch = config.train.global_batch_size if is_said("train.global_batch_size") else batch
    needed = steps_for(parameters, rows, batch, row_tokens, text=text)
    steps = config.train.train_iters if is_said("train.train_iters") else needed
    rate = ADAPTER_RATE if lora else next((value for most, value in RATES if parameters < most), LARGE_RATE)
    of_size = "for adapters" if lora else f"for {in_billions(parameters)}"
    peak = config.optimizer.lr if is_said("optimizer.lr") else rate
    ours = config.engine.name == TRANSFORMERS
    if ours and (parameters < SMALL or not machine.gpus):
        found.append(Choice("train.micro_batch_size", None, "as many rows in a pass as fit and make a step faster"))
    elif parameters < SMALL:
        found.append(Choice("train.micro_batch_size", None, "a whole batch at once: the model is small"))
    if parameters < SMALL:
        found += [] if machine.gpus else [Choice("run.threads", 1, "more threads would slow each other down")]
    if text:  # with chats the rate falls from the start
        found.append(Choice("scheduler.lr_wsd_decay_iters", max(1, 2 * steps // 5), "the last two fifths of the steps"))
    if config.checkpoint.keep_best and ours:
        found.append(_publishing(parameters, text=text))
    return [
        *found,
        Choice("train.global_batch_size", batch, f"of {of_what}"),
        Choice("train.train_iters", steps, _epochs(steps * batch / rows)),
        Choice("optimizer.lr", rate, of_size),
        Choice("optimizer.min_lr", peak / 20, "a twentieth of it at the end"),
        Choice("scheduler.lr_warmup_iters", max(1, steps // 20), "a twentieth of the steps"),
        Choice("train.eval_interval", max(1, steps // 4), "four times"),
        Choice("checkpoint.save_interval", max(1, steps // 4), "four times"),
        Choice("logger.log_interval", max(1, steps // 10), "ten lines"),
    ]
