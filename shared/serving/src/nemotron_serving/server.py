"""The server around the routes: uvicorn, with a graceful shutdown and timeouts for idle connections.

with serving(Api(model, ("tiny",), 256).app(None)) as url:     # http://127.0.0.1:41234, until the block ends
    ...
"""

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol, h11

from nemotron_shared.errors import UserError

LOOPBACK = "127.0.0.1"
REQUEST_SECONDS = 10.0
"""Timeout from the start of a connection, or the end of an answer, to the end of the next request's headers."""
GRACE_SECONDS = 5
MOST_CONNECTIONS = 512
LARGEST_HEADERS = 16 * 1024


class Impatient(H11Protocol):
    """Close connections on which the next request does not arrive in time.

    uvicorn itself waits forever once a byte has arrived, also for the rest of a body that is no longer read.
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
