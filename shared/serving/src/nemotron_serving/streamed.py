"""Stream answers while they are generated."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from nemotron_serving.choice import Choice
from nemotron_serving.guard import ENDING


class Streamed(StreamingResponse):
    """Answers as server-sent events; stops if they cannot be sent."""

    def __init__(self, events: AsyncIterator[bytes], choices: list[Choice]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self._choices = choices

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the base class, which leaves its iterator open if sending fails."""
        try:
            await super().__call__(scope, receive, send)
        except asyncio.CancelledError:  # shutdown: the end of the stream alone would not tell the client
            await send({"type": "http.response.body", "body": event(ENDING.content), "more_body": False})
        finally:
            for choice in self._choices:
                choice.cancel()


def event(content: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + orjson.dumps(content) + b"\n\n"
