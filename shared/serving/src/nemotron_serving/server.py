"""The server around the routes: uvicorn, with checks of keys and sizes, a graceful shutdown, and timeouts.

with serving(Api(model, ("tiny",), 256).app(None)) as url:     # http://127.0.0.1:41234, until the block ends
    ...
"""

import asyncio
import hmac
import signal
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, h11

from nemotron_data.sources.json_rows import repeated_key
from nemotron_shared.system.errors import UserError

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
    """Require the key or, without one, a request addressed to this machine and sent by no page of another site."""

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
            # a browser names the page that sends a request, if it changes anything; ours has the server's own address
            origin = headers.get("origin")
            if origin is not None and urlsplit(origin).netloc.lower() != headers["host"].lower():
                what = f"a page of another site ({origin[:100]}) may not ask this server"
                raise Refusal(403, f"{what}: open the server's own page, or serve with --api-key-env")
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


LOOPBACK = "127.0.0.1"
REQUEST_SECONDS = 10.0
"""Timeout from the start of a connection, or the end of an answer, to the end of the next request's headers."""
GRACE_SECONDS = 5
MOST_CONNECTIONS = 512
LARGEST_HEADERS = 16 * 1024


class Impatient(H11Protocol):
    """Close connections on which the next request does not arrive in time.

    uvicorn itself waits forever once a byte has arrived, even for the rest of a body that nothing reads.
    """

    def connection_made(self, transport: Any) -> None:
        """See the base class."""
        super().connection_made(transport)
        self._expect_request()

    def on_response_complete(self) -> None:
        """See the base class, which may start the next request at once."""
        self._expect_request()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """See the base class, which lets both it and the application answer, even if an answer has already begun."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # any response of the application comes too late
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _expect_request(self) -> None:
        self.loop.call_later(REQUEST_SECONDS, self._require_request, self.cycle)

    def _require_request(self, last: Any) -> None:
        if self.cycle is last:
            self.transport.close()
            self.loop.call_later(GRACE_SECONDS, self.transport.abort)  # for clients that do not read the rest


class Server(uvicorn.Server):
    """Treat SIGTERM and Ctrl-C as a normal end: exit code 0, and the signal is not raised again.

    Answers still pending at the end get an error; uvicorn itself cuts them off, with a traceback for each.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See the base class."""
        loop = asyncio.get_running_loop()
        ends = loop.call_later(GRACE_SECONDS, self._end_answers), loop.call_later(GRACE_SECONDS + 1, self._hang_up)
        await super().shutdown(sockets)
        for end in ends:
            end.cancel()

    def _end_answers(self) -> None:
        for task in self.server_state.tasks:
            task.cancel()

    def _hang_up(self) -> None:
        """Abort connections of clients that do not read."""
        for connection in [*self.server_state.connections]:
            connection.transport.abort()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """See the base class."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def listen(host: str, port: int) -> socket.socket:
    """Bind a socket; port 0 takes a free one.

    Raises:
        UserError: the address is in use, or does not belong to this machine.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        what = f"cannot listen at {host}, port {port}: {getattr(error, 'strerror', None) or error}"
        raise UserError(what, "choose another with --port, or 0 for a free one; see what listens: ss -ltnp") from error


def url_of(bound: socket.socket) -> str:
    """URL of the server."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def server_for(app: Starlette) -> Server:
    """A server that does not listen yet."""
    return Server(
        uvicorn.Config(
            app,
            http=Impatient,
            ws="none",
            lifespan="off",
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=GRACE_SECONDS + 2,
            h11_max_incomplete_event_size=LARGEST_HEADERS,
        )
    )


def run(app: Starlette, bound: socket.socket) -> None:
    """Serve until a signal; answers in progress may take a few more seconds."""
    server = server_for(app)
    asyncio.run(server.serve(sockets=[bound]))


@contextmanager
def serving(app: Starlette) -> Generator[str]:
    """Run a server in a thread of this process, for this machine only, until the block ends; yields its URL."""
    with listen(LOOPBACK, 0) as bound:
        server = server_for(app)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[bound])), name="server", daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        try:
            yield url_of(bound)
        finally:
            server.should_exit = True
            thread.join()
