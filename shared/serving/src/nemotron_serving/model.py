"""A model that answers: its weights, its tokenizer, its chat template, and what it says of itself.

with ready(artifact, device="auto", size=8, slow_kernels=False) as model:
    answer = model.batch.generate(model.prompter.chat(messages).ids, Sampling(max_tokens=64))
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers.utils import logging

from nemotron_data.chat.prompt import Prompt, Prompter
from nemotron_engines.modeling.build import load_model, load_tokenizer, read_config
from nemotron_engines.modeling.generation import ends_of, unused
from nemotron_serving.batch import Batch
from nemotron_serving.sampling import Sampling
from nemotron_shared.artifacts import Artifact
from nemotron_shared.config.schema import ModelLoadingEngine
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.console import say
from nemotron_shared.runtime.models.ends import generation_of
from nemotron_shared.stages import STAGES

DRAWN = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
"""What decides about a draw, and what stands for nothing said."""
LARGEST_CONTEXT = 10**9
"""Tokenizers say more than this where nobody has told them a length."""


@dataclass(frozen=True)
class Model:
    """What answers.

    Attributes:
        name: how people refer to it.
        context: tokens of prompt and answer together, at most.
        chats: it has a chat template and was taught to use it.
        asks: what the model's own generation_config.json asks for; its temperature is 0 where it does not draw.
    """

    name: str
    tokenizer: Any
    prompter: Prompter
    batch: Batch
    context: int
    chats: bool
    asks: Sampling

    def sampling(
        self, max_tokens: int, temperature: float | None, top_p: float | None, seed: int | None,
        logprobs: int | None = None,
    ) -> Sampling:  # fmt: skip
        """What somebody wants; where that is None, and for what nobody can want, as the model asks."""
        wanted = {"temperature": temperature, "top_p": top_p}
        told = {name: value for name, value in wanted.items() if value is not None}
        return replace(self.asks, max_tokens=max_tokens, seed=seed, logprobs=logprobs, **told)

    def room(self, prompt: Prompt, wanted: int | None, most: int) -> int:
        """How many tokens the answer may have.

        Args:
            wanted: what was asked for; None takes `most`, or as many as still fit.

        Raises:
            UserError: prompt and answer together are longer than the context.
        """
        used, left = len(prompt.ids), self.context - len(prompt.ids)
        if left < max(wanted or 1, 1):
            asked = f" and the answer may have {wanted}" if wanted else ""
            what = f"the prompt has {used} tokens{asked}; the model's context is {self.context}"
            raise UserError(what, "ask with less text, or for a shorter answer")
        return min(most, left) if wanted is None else wanted


@contextmanager
def ready(
    artifact: Artifact, *, device: str, size: int, slow_kernels: bool, most_waiting: int | None = None
) -> Generator[Model]:
    """The model, loaded and answering until the block ends.

    Args:
        size: how many requests are answered at once.
        most_waiting: how many more may wait; None does not count.
        slow_kernels: a large model may run on the pure-torch kernels.
    """
    logging.set_verbosity_error()  # a tokenizer's remark on long texts says less than our own check
    say(f"[{artifact.reference}] loading")
    engine = ModelLoadingEngine(
        name="serving", device="auto", attn_implementation="sdpa", allow_reference_kernels=slow_kernels
    )
    on_gpu = device == "auto" and torch.cuda.is_available()
    read_config(artifact.path, trusted=artifact.trusted)  # the tokenizer's library reads it, and would be blamed for it
    tokenizer = load_tokenizer(artifact.path)
    model: Any = load_model(artifact.path, engine, trusted=artifact.trusted).eval()
    model = model.to("cuda:0" if on_gpu else "cpu")
    asked = generation_of(artifact.path)
    if left := unused(asked):
        say(f"[{artifact.reference}] its generation_config.json asks for {', '.join(left)}: not done here")
    made_by = STAGES.get(artifact.manifest.producer.stage)
    context = _context(model.config, tokenizer)
    prompter = Prompter(tokenizer, context)
    chats = prompter.template is not None and (made_by is None or made_by.before is not None)
    with Batch(model, ends_of(model, tokenizer), size, most_waiting, artifact.reference) as batch:
        yield Model(artifact.reference, tokenizer, prompter, batch, context, chats, _asks(asked))


def _asks(asked: dict[str, Any]) -> Sampling:
    """What generation_config.json asks for, as transformers reads it: without do_sample, nothing is drawn."""
    greedy = Sampling(0, repetition_penalty=asked.get("repetition_penalty") or 1.0)
    if not asked.get("do_sample"):
        return greedy
    drawn: dict[str, Any] = {name: asked.get(name) or usual for name, usual in DRAWN.items()}
    return replace(greedy, **drawn)


def _context(config: Any, tokenizer: Any) -> int:
    lengths = [getattr(config, "max_position_embeddings", None), getattr(tokenizer, "model_max_length", None)]
    known = [length for length in lengths if isinstance(length, int) and 0 < length < LARGEST_CONTEXT]
    return min(known, default=LARGEST_CONTEXT)
