"""Checks before the server's routes: API key, size limits and timeouts."""

import asyncio
import hmac
from contextlib import suppress
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemotron_data.sources.json_rows import repeated_key

LARGEST_BODY = 8 * 2**20
DEEPEST = 64
BODY_SECONDS = 30.0
SEND_SECONDS = 60.0
OPEN_PATHS = ("/", "/health")
"""They reveal nothing about the model; the page must load without the key in order to ask for it."""
LOCAL_NAMES = {"localhost", "127.0.0.1", "[::1]"}


class Refusal(Exception):
    """An error in OpenAI's format."""

    def __init__(self, status: int, message: str, code: str | None = None, **headers: str) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.headers = status, message, code, headers

    @property
    def content(self) -> dict[str, Any]:
        """Body of the response."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(self.status, kind)
        return {"error": {"message": self.message, "type": kind, "param": None, "code": self.code}}

    def response(self) -> JSONResponse:
        """The whole response."""
        headers = {name.replace("_", "-"): value for name, value in self.headers.items()}
        return JSONResponse(self.content, self.status, headers)


ENDING = Refusal(503, "the server is shutting down")
"""Response to pending requests when the server ends."""


class Guard:
    """Require the key or, without one, a request addressed to this machine."""

    def __init__(self, app: ASGIApp, key: str | None) -> None:
        self._app, self._key = app, None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        begun = False

        async def in_time(message: Message) -> None:
            nonlocal begun
            begun = True
            async with asyncio.timeout(SEND_SECONDS):  # clients that do not read must not keep the connection alive
                await send(message)

        try:
            self._require(scope["path"], Headers(scope=scope))
        except Refusal as refusal:
            await refusal.response()(scope, receive, in_time)
            return
        try:
            with suppress(TimeoutError):
                await self._app(scope, receive, in_time)
        except asyncio.CancelledError:  # the server is shutting down, and does not wait for this one
            if not begun:
                await ENDING.response()(scope, receive, in_time)

    def _require(self, path: str, headers: Headers) -> None:
        if self._key is None:
            # guard against DNS rebinding: a page of another site may have had its name point here
            name = headers.get("host", "").rpartition(":")[0] or headers.get("host", "")
            if len(headers.getlist("host")) != 1 or (name not in LOCAL_NAMES and headers["host"] not in LOCAL_NAMES):
                raise Refusal(403, "this server answers this machine only: ask for localhost or 127.0.0.1")
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode(), self._key) and kind.lower() == "bearer"
        if not right and path not in OPEN_PATHS:
            raise Refusal(401, "no key, or a wrong one: send it as 'Authorization: Bearer KEY'", "invalid_api_key")


async def json_of(request: Request) -> dict[str, Any]:
    """Read the body of a request.

    Raises:
        Refusal: it is too large or too slow, or not a JSON object of bounded depth with unique keys.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refusal(415, "send JSON: Content-Type: application/json")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > LARGEST_BODY:
                    raise Refusal(413, f"the body is larger than {LARGEST_BODY} bytes", connection="close")
    except TimeoutError as error:
        raise Refusal(408, f"the body did not come within {BODY_SECONDS:.0f} seconds", connection="close") from error
    except ClientDisconnect as error:
        raise Refusal(400, "the client has gone") from error
    try:
        content = orjson.loads(body)
    except ValueError as error:
        raise Refusal(400, f"the body is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise Refusal(400, "the body is not a JSON object")
    if _depth(content) > DEEPEST:
        raise Refusal(400, f"the body is nested deeper than {DEEPEST} levels")
    _require_each_key_once(body)
    return content


def _require_each_key_once(body: bytearray) -> None:
    """Refuse an object with a repeated key; the parser would silently keep the last value."""
    try:
        twice = repeated_key(bytes(body))
    except ValueError as error:  # an integer of thousands of digits
        raise Refusal(400, f"the body is not JSON: {error}") from error
    if twice is not None:
        raise Refusal(400, f"the body has the key '{twice[:100]}' twice: give it once")


def _depth(value: Any) -> int:
    """Nesting depth of lists and objects."""
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return depth
