"""Concurrent requests to an environment's server, and their failures.

    client = Client(12001, timeout=60, connections=8)
    client.post([("/find", {"name": "55"}, cookies), ...])  ->  [Answer(200, b'{"box":"8"}'), ...]

A server that is slow, dead or broken is a `Failure`, never an answer or a reward, because it says nothing about the
model.
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
"""Maximum size of an answer; a longer one is a failure, so it cannot fill the memory."""
SHOWN = 200
Cookies = dict[str, str]
"""Cookies of one episode, by which the server knows it."""
Post = tuple[str, Mapping[str, Any], Cookies]
"""Path, body, and the episode's cookies, which the answer updates."""


class Failure(Exception):
    """The environment failed, not the model."""


@dataclass(frozen=True)
class Answer:
    """A server's answer; its status is below 500."""

    path: str
    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as text for the model."""
        return self.body.decode("utf-8", "replace")

    def fields(self) -> dict[str, Any]:
        """Parse the body of a successful answer.

        Raises:
            Failure: another status, or no JSON object.
        """
        if self.status != 200:
            raise Failure(f"POST {self.path}: status {self.status}: {self.text[:SHOWN]}")
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise Failure(f"POST {self.path}: no JSON: {self.text[:SHOWN]!r}") from error
        if not isinstance(found, dict):
            raise Failure(f"POST {self.path}: no JSON object: {self.text[:SHOWN]!r}")
        return found


class Client:
    """Post to one server on this machine.

    Args:
        timeout: maximum seconds for an answer.
        connections: maximum concurrent requests.
        to_the_end: ask the rest when one has failed; else they count as failed, too.
    """

    def __init__(self, port: int, *, timeout: float, connections: int, to_the_end: bool = True) -> None:
        self.port, self.timeout, self.connections, self.to_the_end = port, timeout, connections, to_the_end
        self._open: list[http.client.HTTPConnection] = []

    def post(self, posts: Sequence[Post]) -> list[Answer | Failure]:
        """Answers in the order of the posts. Each worker thread keeps one connection."""
        found: list[Answer | Failure] = [Failure("not asked")] * len(posts)
        numbers = iter(range(len(posts)))  # `next` is atomic, so each number goes to one worker

        def work() -> None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout)
            self._open.append(connection)
            for number in numbers:
                found[number] = self._one(connection, *posts[number])
                if isinstance(found[number], Failure) and not self.to_the_end:
                    for _ in numbers:
                        pass
            connection.close()

        workers = [threading.Thread(target=work, daemon=True) for _ in range(min(self.connections, len(posts)))]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        finally:  # a signal to stop interrupts `join`: skip the remaining posts, and end those under way
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
