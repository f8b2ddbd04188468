"""One answer of a request, passed from the model's thread to the server's event loop."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from nemotron_data.chat.prompt import Prompt
from nemotron_serving.batch import End
from nemotron_serving.model import Model
from nemotron_serving.sampling import Sampling, Token
from nemotron_serving.text import Call, Piece, Text


@dataclass
class Choice:
    """An answer, complete when `updates` has ended."""

    index: int
    prompt: Prompt
    text: Text
    reason: str = "stop"
    tokens: list[Token] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    _heard: "asyncio.Queue[Token | End]" = field(default_factory=asyncio.Queue)
    _answer: Any = None

    def begin(self, model: Model, sampling: Sampling) -> None:
        """Submit it to the model.

        Raises:
            Full: the queue is full.
        """
        if sampling.max_tokens == 0:
            self._heard.put_nowait(End("length"))
            return
        loop = asyncio.get_running_loop()

        def hear(what: Token | End) -> None:
            with suppress(RuntimeError):  # the loop has ended, so there is no client any more
                loop.call_soon_threadsafe(self._heard.put_nowait, what)

        self._answer = model.batch.generate(self.prompt.ids, sampling, hear)

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
            while not self.text.stopped:
                heard = await self._heard.get()
                if isinstance(heard, End):
                    if heard.error or heard.reason == "cancelled":
                        raise heard.error or RuntimeError("the server is shutting down")
                    self.reason = heard.reason
                    break
                self.tokens.append(heard)
                pieces = self.text.feed(heard.id)
                self.pieces += pieces
                yield pieces, heard
            rest = self.text.end()
            self.pieces += rest
            if self.calls and self.reason == "stop":
                self.reason = "tool_calls"
            yield rest, None
        finally:
            self.cancel()

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
