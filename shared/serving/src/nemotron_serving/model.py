"""A loaded model that answers requests: weights, tokenizer, chat template and generation defaults; and its answers.

with ready(artifact, device="auto", size=8, slow_kernels=False) as model:
    answer = model.batch.generate(model.prompter.chat(messages).ids, Sampling(max_tokens=64))
"""

import asyncio
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from transformers.utils import logging

from nemotron_data.chat.answers import Call, Piece, Text
from nemotron_data.chat.prompt import Prompt, Prompter
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_engines.modeling.build import load_model, load_tokenizer, read_config
from nemotron_engines.modeling.generation import embeddings_of, ends_of, unused
from nemotron_serving.batch import Batch, End
from nemotron_serving.grammar import Constraint, Grammars
from nemotron_serving.sampling import Sampling, Token
from nemotron_shared.artifacts import Artifact
from nemotron_shared.config.schema import ModelLoadingEngine
from nemotron_shared.models.folder import generation_of
from nemotron_shared.stages import STAGES
from nemotron_shared.system.console import say
from nemotron_shared.system.errors import UserError

DRAWN = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
"""Settings that affect sampling, and values that leave it unchanged."""
LARGEST_CONTEXT = 10**9
"""Tokenizers without a configured length report a larger number than this."""


@dataclass(frozen=True)
class Model:
    """A model that answers requests.

    Attributes:
        name: its name for people.
        context: maximum tokens of prompt and answer together.
        chats: it has a chat template and was trained with it.
        asks: defaults from the model's generation_config.json; temperature 0 if it does not sample.
    """

    name: str
    tokenizer: Any
    prompter: Prompter
    batch: Batch
    context: int
    chats: bool
    asks: Sampling

    @cached_property
    def grammars(self) -> Grammars:
        """What keeps answers to a form."""
        return Grammars(self.tokenizer, self.batch.ends)

    def sampling(
        self, max_tokens: int, temperature: float | None, top_p: float | None, seed: int | None,
        logprobs: int | None = None,
    ) -> Sampling:  # fmt: skip
        """Sampling settings of a request; unset ones, and those that requests cannot set, are the model's defaults."""
        wanted = {"temperature": temperature, "top_p": top_p}
        told = {name: value for name, value in wanted.items() if value is not None}
        return replace(self.asks, max_tokens=max_tokens, seed=seed, logprobs=logprobs, **told)

    def room(self, prompt: Prompt, wanted: int | None, most: int) -> int:
        """Maximum number of tokens for the answer.

        Args:
            wanted: the requested number; None uses `most`, or as many as still fit.

        Raises:
            UserError: prompt and answer together exceed the context.
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
    """Load the model, and answer requests until the block ends.

    Args:
        size: number of requests answered at once.
        most_waiting: maximum number of waiting requests; None for no limit.
        slow_kernels: allow a large model to run on the pure-torch kernels.
    """
    logging.set_verbosity_error()  # the tokenizer's warning about long texts is less precise than our own check
    say(f"[{artifact.reference}] loading")
    engine = ModelLoadingEngine(
        name="serving", device="auto", attn_implementation="sdpa", allow_reference_kernels=slow_kernels
    )
    on_gpu = device == "auto" and torch.cuda.is_available()
    read_config(artifact.path, trusted=artifact.trusted)  # so that its errors are not reported as the tokenizer's
    tokenizer = load_tokenizer(artifact.path)
    model: Any = load_model(artifact.path, engine, trusted=artifact.trusted).eval()
    model = model.to("cuda:0" if on_gpu else "cpu")
    asked = generation_of(artifact.path)
    if left := unused(asked):
        say(f"[{artifact.reference}] its generation_config.json asks for {', '.join(left)}: not done here")
    if told := TokenizerFolder(artifact.path).templates_left_out():
        say(f"[{artifact.reference}] {told}")
    made_by = STAGES.get(artifact.manifest.producer.stage)
    context = _context(model.config, tokenizer)
    prompter = Prompter(tokenizer, context, embeddings_of(model))
    chats = prompter.template is not None and (made_by is None or made_by.before is not None)
    with Batch(model, ends_of(model, tokenizer), size, most_waiting, artifact.reference) as batch:
        yield Model(artifact.reference, tokenizer, prompter, batch, context, chats, _asks(asked))


def _asks(asked: dict[str, Any]) -> Sampling:
    """Defaults in generation_config.json, as transformers reads it: greedy without do_sample."""
    greedy = Sampling(0, repetition_penalty=asked.get("repetition_penalty") or 1.0)
    if not asked.get("do_sample"):
        return greedy
    drawn: dict[str, Any] = {name: asked.get(name) or usual for name, usual in DRAWN.items()}
    return replace(greedy, **drawn)


def _context(config: Any, tokenizer: Any) -> int:
    lengths = [getattr(config, "max_position_embeddings", None), getattr(tokenizer, "model_max_length", None)]
    known = [length for length in lengths if isinstance(length, int) and 0 < length < LARGEST_CONTEXT]
    return min(known, default=LARGEST_CONTEXT)


@dataclass
class Choice:
    """An answer, passed from the model's thread to an event loop; complete when `updates` has ended.

    Attributes:
        one_call: stop after the first tool call.
        ended: the model ended it, with a token that is not one of `tokens`.
        thought: number of tokens up to the end of the thought.
    """

    index: int
    prompt: Prompt
    text: Text
    one_call: bool = False
    reason: str = "stop"
    ended: bool = False
    thought: int = 0
    tokens: list[Token] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    _heard: "asyncio.Queue[Token | End]" = field(default_factory=asyncio.Queue)
    _answer: Any = None

    def begin(self, model: Model, sampling: Sampling, constraint: Constraint | None = None) -> None:
        """Submit it to the model.

        Args:
            constraint: what the answer must be.

        Raises:
            Full: the queue is full.
        """
        if sampling.max_tokens == 0:
            self._heard.put_nowait(End("length"))
            return
        loop = asyncio.get_running_loop()

        def hear(what: Token | End) -> None:
            with suppress(RuntimeError):  # the loop has ended, so the client is gone
                loop.call_soon_threadsafe(self._heard.put_nowait, what)

        self._answer = model.batch.generate(self.prompt.ids, sampling, hear, constraint)

    def cancel(self) -> None:
        """Cancel it."""
        if self._answer is not None:
            self._answer.cancel()

    async def updates(self) -> AsyncIterator[tuple[list[Piece], Token | None]]:
        """Yield new pieces, with the token that completed them; the last ones come without a token.

        Raises:
            Exception: any error of the model.
        """
        try:
            while not self.text.stopped and not (self.one_call and self.calls):
                heard = await self._heard.get()
                if isinstance(heard, End):
                    if heard.error or heard.reason == "cancelled":
                        raise heard.error or RuntimeError("the server is shutting down")
                    self.reason, self.ended = heard.reason, heard.reason == "stop"
                    break
                self.tokens.append(heard)
                pieces = self._added(self.text.feed(heard.id))
                if any(piece.kind == "reasoning" for piece in pieces):
                    self.thought = len(self.tokens)
                yield pieces, heard
            rest = self._added(self.text.end())
            if self.calls and self.reason == "stop":
                self.reason = "tool_calls"
            yield rest, None
        finally:
            self.cancel()

    def _added(self, pieces: list[Piece]) -> list[Piece]:
        """Keep these pieces; of several calls, only the first one if the request wants no more."""
        before = len(self.pieces)
        for piece in pieces:
            if not (piece.call and self.one_call and self.calls):
                self.pieces.append(piece)
        return self.pieces[before:]

    async def finish(self) -> "Choice":
        """Wait for the whole answer."""
        async for _ in self.updates():
            pass
        return self

    def said(self, kind: str) -> str:
        """Text of all pieces of a kind."""
        return "".join(piece.text for piece in self.pieces if piece.kind == kind)

    @property
    def calls(self) -> list[Call]:
        """Tool calls."""
        return [piece.call for piece in self.pieces if piece.call]


async def merged(choices: Sequence[Choice]) -> AsyncIterator[tuple[Choice, list[Piece], Token | None]]:
    """Updates of several answers, as they arrive."""
    line: asyncio.Queue[tuple[Choice, list[Piece], Token | None] | Exception | None] = asyncio.Queue()

    async def follow(choice: Choice) -> None:
        try:
            async for pieces, token in choice.updates():
                line.put_nowait((choice, pieces, token))
            line.put_nowait(None)
        except Exception as error:  # passed to the consumer of the queue
            line.put_nowait(error)

    tasks = [asyncio.create_task(follow(choice)) for choice in choices]
    try:
        left = len(tasks)
        while left:
            update = await line.get()
            if isinstance(update, Exception):
                raise update
            if update is None:
                left -= 1
            else:
                yield update
    finally:
        for task in tasks:
            task.cancel()
        for choice in choices:
            choice.cancel()
