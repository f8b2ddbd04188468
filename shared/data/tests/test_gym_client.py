"""What goes wrong with an environment's server is a failure with its reason, and never an answer."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from nemotron_data.gym import client
from nemotron_data.gym.client import Answer, Client, Failure


class Faulty(BaseHTTPRequestHandler):
    """Answers as the path says."""

    release = threading.Event()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        match self.path:
            case "/slow":
                self.release.wait(300)
            case "/gone":
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            case "/status":
                self.answer(int(body["status"]), b'{"detail": "so"}')
            case "/text":
                self.answer(200, b"no JSON")
            case "/deep":
                self.answer(200, b"[" * 100_000)
            case "/list":
                self.answer(200, b"[1]")
            case "/large":
                self.answer(200, b" " * int(body["size"]))
            case _:
                self.answer(200, json.dumps({"cookies": self.headers.get("Cookie", ""), **body}).encode())

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Set-Cookie", "session=abc; path=/")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def faulty() -> Iterator[Client]:
    Faulty.release.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Faulty) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Client(server.server_address[1], timeout=60, connections=4)
        Faulty.release.set()
        server.shutdown()
        thread.join()


def one(client: Client, path: str, **body: Any) -> Answer | Failure:
    return client.post([(path, body, {})])[0]


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/gone", {}, "POST /gone: RemoteDisconnected"),
        ("/status", {"status": 500}, "POST /status: status 500"),
        ("/status", {"status": 503}, "status 503"),
    ],
)
def test_a_broken_server_is_a_failure(faulty: Client, path: str, body: dict[str, Any], reason: str) -> None:
    found = one(faulty, path, **body)
    assert isinstance(found, Failure)
    assert reason in str(found)


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/text", {}, "no JSON: 'no JSON'"),
        ("/deep", {}, r"no JSON: '\[\["),
        ("/list", {}, "no JSON object"),
        ("/status", {"status": 422}, "status 422"),
    ],
)
def test_fields_are_those_of_a_good_answer(faulty: Client, path: str, body: dict[str, Any], reason: str) -> None:
    found = one(faulty, path, **body)
    assert isinstance(found, Answer)
    with pytest.raises(Failure, match=reason):
        found.fields()


def test_a_slow_server_is_a_failure(faulty: Client) -> None:
    found = one(Client(faulty.port, timeout=0.5, connections=1), "/slow")
    assert str(found) == "POST /slow: no answer within 0.5 s"


def test_an_endless_answer_fails_before_it_fills_the_memory(faulty: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_BYTES", 1 << 20)
    assert isinstance(one(faulty, "/large", size=1 << 20), Answer)
    assert "more than 1 MB" in str(one(faulty, "/large", size=(1 << 20) + 1))


def test_answers_come_in_the_order_of_the_posts_and_episodes_keep_their_cookies(faulty: Client) -> None:
    cookies = [{"session": str(number)} for number in range(40)]
    found = faulty.post([("/echo", {"number": number}, one) for number, one in enumerate(cookies)])
    fields = [one.fields() for one in found if isinstance(one, Answer)]
    assert [one["number"] for one in fields] == list(range(40))
    assert [one["cookies"] for one in fields] == [f"session={number}" for number in range(40)]
    assert all(one == {"session": "abc"} for one in cookies)


def test_nothing_more_is_asked_after_a_failure_that_stops(faulty: Client) -> None:
    posts = [(path, {"status": 500, "number": 1}, {}) for path in ("/echo", "/status", "/echo", "/echo")]
    assert [isinstance(one, Answer) for one in faulty.post(posts)] == [True, False, True, True]
    stopping = Client(faulty.port, timeout=60, connections=1, to_the_end=False)
    found = stopping.post(posts)
    assert [isinstance(one, Answer) for one in found] == [True, False, False, False]
    assert "status 500" in str(found[1]) and str(found[2]) == "not asked"


def test_a_dead_server_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert "ConnectionRefusedError" in str(one(Client(port, timeout=60, connections=1), "/find"))
