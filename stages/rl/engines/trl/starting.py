"""What a training begins with, regardless of its method: the model, its adapters, its tokenizer and template."""

from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from nemotron_data.chat.prompt import Prompter
from nemotron_data.tokenizers.folder import provide_tokenizer
from nemotron_engines.lora.adapt import lora_config
from nemotron_engines.modeling.build import load_tokenizer, set_threads, starting_weights
from nemotron_engines.modeling.generation import embeddings_of
from nemotron_engines.modeling.taken import dropouts, without_dropout
from nemotron_shared.artifacts import Artifact
from nemotron_shared.engine.spec import Task
from nemotron_shared.system import distributed
from stages.rl.schema import RLConfig, TRLEngine
from stages.rl.vocabulary import another_vocabulary, vocabulary_of


class Beginning(NamedTuple):
    """What a training begins with.

    Attributes:
        folder: of the tokenizer, and of the model unless its weights are random.
        adapters: PEFT's config, with which TRL adds the adapters itself; None to train all weights.
    """

    folder: Path
    model: PreTrainedModel
    adapters: Any
    tokenizer: Any
    prompter: Prompter

    def reference(self, task: Task[RLConfig[TRLEngine]]) -> PreTrainedModel | None:
        """The starting model once more, to compare with; None if it is there below the adapters."""
        if self.adapters:
            return None
        model = starting_weights(task, self.folder)
        without_dropout(model)
        return model


def load_beginning(task: Task[RLConfig[TRLEngine]]) -> Beginning:
    """Load the model of the config, or make one with random weights, if the config allows them."""
    config, base = task.config, task.inputs["model"]
    set_threads(config.run.threads)
    folder = base.path if base is not None else task.run.directory / "tokenizer"
    if base is None:
        distributed.on_rank_zero(lambda: provide_tokenizer(config.model.tokenizer, folder))
    model = starting_weights(task, folder)
    without_dropout(model)
    if asked := dropouts(model.config):
        told = ", ".join(f"{key} {value:g}" for key, value in asked.items())
        task.run.say(f"dropout of config.json ({told}) is left out: what is drawn and compared is what is trained")
    adapters = lora_config(model, config.engine.peft) if config.engine.peft else None
    tokenizer = load_tokenizer(folder)
    return Beginning(folder, model, adapters, tokenizer, Prompter(tokenizer, embeddings=embeddings_of(model)))


def require_same_vocabulary(
    role: str, found: Artifact, other: PreTrainedModel, model: PreTrainedModel, tokenizer: Any
) -> None:
    """Refuse another model that would read the ids of the model in training as other tokens.

    Raises:
        UserError: naming the role; also if its tokenizer is missing or damaged.
    """
    theirs = vocabulary_of(role, found)
    if theirs != tokenizer.get_vocab() or min(tokens_of(other), tokens_of(model)) <= max(theirs.values()):
        raise another_vocabulary(role, found)


def tokens_of(model: PreTrainedModel) -> int:
    """How many tokens a model has embeddings for, which may be more than its tokenizer knows."""
    return model.config.get_text_config().vocab_size
