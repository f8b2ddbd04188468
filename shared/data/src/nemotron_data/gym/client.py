"""Requests to an environment's server, several at once, and what can go wrong with them.

    client = Client(12001, timeout=60, connections=8)
    client.post([("/find", {"name": "55"}, cookies), ...])  ->  [Answer(200, b'{"box":"8"}'), ...]

A server that is slow, dead or broken says nothing about the model: it is a `Failure`, never an answer and never a
reward.
"""

import http.client
import json
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

MOST_BYTES = 16 << 20
"""Of an answer; a longer one is a failure, before it fills the memory."""
SHOWN = 200
Cookies = dict[str, str]
"""Of one episode; they tell the server which."""
Post = tuple[str, Mapping[str, Any], Cookies]
"""Path, body, and the cookies of the episode, which the answer renews."""


class Failure(Exception):
    """The environment failed, not the model."""


@dataclass(frozen=True)
class Answer:
    """What a server answered; never a status of 500 or more."""

    path: str
    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as a model reads it."""
        return self.body.decode("utf-8", "replace")

    def fields(self) -> dict[str, Any]:
        """The body of a good answer.

        Raises:
            Failure: another status, or no JSON object.
        """
        if self.status != 200:
            raise Failure(f"POST {self.path}: status {self.status}: {self.text[:SHOWN]}")
        try:
            found = json.loads(self.body)
        except ValueError as error:
            raise Failure(f"POST {self.path}: no JSON: {self.text[:SHOWN]!r}") from error
        if not isinstance(found, dict):
            raise Failure(f"POST {self.path}: no JSON object: {self.text[:SHOWN]!r}")
        return found


class Client:
    """Posts to one server on this machine.

    Args:
        timeout: seconds that an answer may take.
        connections: requests at once.
    """

    def __init__(self, port: int, *, timeout: float, connections: int) -> None:
        self.port, self.timeout, self.connections = port, timeout, connections
        self._open: list[http.client.HTTPConnection] = []

    def post(self, posts: Sequence[Post]) -> list[Answer | Failure]:
        """Answers in the order of the posts. Each worker keeps one connection for its share of them."""
        found: list[Answer | Failure] = [Failure("not asked")] * len(posts)
        numbers = iter(range(len(posts)))  # `next` is atomic, so each number goes to one worker

        def work() -> None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout)
            self._open.append(connection)
            for number in numbers:
                found[number] = self._one(connection, *posts[number])
            connection.close()

        workers = [threading.Thread(target=work, daemon=True) for _ in range(min(self.connections, len(posts)))]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        finally:  # a signal to stop interrupts `join`: what is left is not asked, and what is under way ends
            for _ in numbers:
                pass
            for connection in self._open:
                with suppress(OSError):
                    if connection.sock is not None:
                        connection.sock.shutdown(socket.SHUT_RDWR)
            self._open.clear()
        return found

    def _one(self, connection: http.client.HTTPConnection, path: str, body: Any, cookies: Cookies) -> Answer | Failure:
        headers = {"Content-Type": "application/json"}
        if cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
        try:
            connection.request("POST", path, json.dumps(body).encode(), headers)
            response = connection.getresponse()
            content = response.read(MOST_BYTES + 1)
        except TimeoutError:
            connection.close()
            return Failure(f"POST {path}: no answer within {self.timeout:g} s")
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return Failure(f"POST {path}: {type(error).__name__}: {error}")
        if len(content) > MOST_BYTES:
            connection.close()
            return Failure(f"POST {path}: an answer of more than {MOST_BYTES >> 20} MB")
        if response.status >= 500:
            return Failure(f"POST {path}: status {response.status}: {content[:SHOWN].decode('utf-8', 'replace')}")
        for header in response.headers.get_all("Set-Cookie") or ():
            name, _, value = header.partition(";")[0].partition("=")
            cookies[name.strip()] = value.strip()
        return Answer(path, response.status, content)
