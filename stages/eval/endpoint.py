"""A small OpenAI-compatible server over a transformers model, on this machine only, for as long as it is needed.

    cut = {}
    with serve(model, tokenizer, name="tiny", batch_size=16, key=key, cut=cut) as url:     # http://127.0.0.1:41234
        ...

Other users of the machine reach it too, so every request but GET /health sends the key as a bearer token.
GET /health and /v1/models; POST /v1/completions (with `echo` and `logprobs`, which scoring by likelihood needs)
and /v1/chat/completions. Answers are greedy: a request with another temperature is refused, not bent. A thought that
the prompt of a chat has opened is part of the answer.
"""

import hmac
import io
import json
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from nemotron_data.chat.prompt import Prompter, asked_messages
from nemotron_data.chat.rows import tools_of
from nemotron_data.chat.thought import whole_answer
from nemotron_data.tokenizers.words import Places, TokenNames
from nemotron_shared.errors import UserError
from stages.eval.batching import ModelQueue
from stages.eval.harness_tasks import Answer

# Below this lm-eval's own `temperature` is greedy in all but name.
GREEDY_TEMPERATURE = 1e-6
LOOPBACK = "127.0.0.1"
LARGEST_BODY = 8 * 2**20
MOST_PROMPTS = 1024
MOST_TOKENS = 1 << 20
MOST_CONNECTIONS = 512
REQUEST_SECONDS = 10.0
"""For the headers of a client that has not shown the key, however it spreads them; it gets one answer."""
PATIENCE_SECONDS = 60.0
"""For each request, body and answer of one that has."""


class BadRequestError(ValueError):
    """A request that cannot be answered as it asks to be."""


@contextmanager
def serve(
    model: Any, tokenizer: Any, *, name: str, batch_size: int, key: str, cut: dict[str, bool] | None = None
) -> Generator[str]:
    """The base URL of a server that ends with the block.

    Args:
        key: what clients must know.
        cut: is told of each question of a chat whether its answer was cut at the longest length.
    """
    with ModelQueue(model, tokenizer, batch_size) as queue, _Server(Answers(queue, name, cut), key) as server:
        thread = threading.Thread(target=server.serve_forever, name="endpoint", daemon=True)
        thread.start()
        try:
            yield f"http://{LOOPBACK}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a client that keeps its connection open must not keep us
    request_queue_size = 128

    def __init__(self, answers: "Answers", key: str) -> None:
        super().__init__((LOOPBACK, 0), _Handler)
        self.answers, self.key, self.room = answers, key, threading.Semaphore(MOST_CONNECTIONS)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is room for one connection more; false closes it."""
        return self.room.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """See the base class; gives the room back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone, or was too slow, is nobody's concern."""


class _Incoming(io.RawIOBase):
    """What a client sends until a moment, whether it sends nothing or a byte now and then."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self.until = connection, 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(into)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Server"  # ty: ignore[incompatible-mutable-override]

    def setup(self) -> None:
        super().setup()
        self._incoming, self._patience = _Incoming(self.connection), REQUEST_SECONDS
        self.rfile = io.BufferedReader(self._incoming)

    def handle_one_request(self) -> None:
        self._incoming.until = time.monotonic() + self._patience
        super().handle_one_request()

    def do_GET(self) -> None:
        self._answer(self.server.answers.gets, lambda make: make())

    def do_POST(self) -> None:
        self._answer(self.server.answers.posts, lambda make: make(_json_object(self._body())))

    def _body(self) -> bytes:
        """What was sent.

        Raises:
            BadRequestError: nobody says how much it is, or it is too much.
        """
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal() and len(length) < 10 and int(length) <= LARGEST_BODY):
            self.close_connection = True  # what follows is not read
            raise BadRequestError(f"the body needs a Content-Length of at most {LARGEST_BODY} bytes")
        self._incoming.until = time.monotonic() + PATIENCE_SECONDS
        return self.rfile.read(int(length))

    def _knows_key(self) -> bool:
        given = self.headers.get("Authorization", "").encode("latin-1", "replace")
        return hmac.compare_digest(given, f"Bearer {self.server.key}".encode())

    def _answer(self, routes: Mapping[str, Callable[..., dict[str, Any]]], call: Callable[..., dict[str, Any]]) -> None:
        make = routes.get(self.path.partition("?")[0].rstrip("/"))
        knows_key = self._knows_key()
        if knows_key:
            self._patience = PATIENCE_SECONDS
        else:
            self.close_connection = True
        if make != self.server.answers.health and not knows_key:
            self._send(HTTPStatus.UNAUTHORIZED, _error("no key, or a wrong one: send Authorization: Bearer KEY"))
            return
        if make is None:
            self.close_connection = True
            self._send(HTTPStatus.NOT_FOUND, _error(f"no {self.command} {self.path}; there are: {', '.join(routes)}"))
            return
        try:
            self._send(HTTPStatus.OK, call(make))
        except BadRequestError as error:
            self._send(HTTPStatus.BAD_REQUEST, _error(str(error)))
        except Exception as error:  # of whatever kind: the asker must hear of it, or waits for its time to run out
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, _error(f"{type(error).__name__}: {error}"))

    def _send(self, status: HTTPStatus, content: Mapping[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.connection.settimeout(PATIENCE_SECONDS)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Thousands of lines that nobody reads."""


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error"}}


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadRequestError("the body is not a JSON object")
    return content


class Answers:
    """What each route answers, without the network around it."""

    def __init__(self, queue: ModelQueue, name: str, cut: dict[str, bool] | None = None) -> None:
        self._queue, self._name, self._tokenizer = queue, name, queue.tokenizer
        self._cut = {} if cut is None else cut
        self._prompter, self._names = Prompter(queue.tokenizer), TokenNames(queue.tokenizer)
        model = {"id": name, "object": "model", "owned_by": "local"}
        self.gets = {
            "/health": self.health,
            "/v1/models": lambda: {"object": "list", "data": [model]},
        }
        self.posts = {"/v1/completions": self.completions, "/v1/chat/completions": self.chat_completions}

    def health(self) -> dict[str, Any]:
        """It is ready as soon as it can be asked."""
        return {"status": "ok"}

    def completions(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Continue each prompt (text, ids, or a list of either), or score it with `echo` and `logprobs`."""
        require_greedy(request)
        choices = []
        for ids in self._prompts(request):
            if request.get("echo"):
                choice = self._echoed(ids, request.get("max_tokens", 16))
            elif request.get("logprobs"):
                raise BadRequestError("'logprobs' are given together with 'echo' only")
            else:
                answer = self._generate(ids, request)
                choice = {"text": answer, "logprobs": None, "finish_reason": _reason(answer)}
            choices.append({"index": len(choices), **choice})
        return {"object": "text_completion", **self._about(), "choices": choices}

    def chat_completions(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer the conversation with the model's own chat template."""
        require_greedy(request)
        messages = request.get("messages")
        if not isinstance(messages, list) or not messages:
            raise BadRequestError("'messages' must be a list of messages")
        try:
            prompt = self._prompter.chat(asked_messages(messages), tools_of(request))
        except (UserError, ValueError) as error:
            raise BadRequestError(str(error)) from error
        answer = self._generate(prompt.ids, request)
        if isinstance(asked := messages[-1].get("content"), str):
            self._cut[asked] = answer.cut
        message = {"role": "assistant", "content": whole_answer(prompt.text, answer)}
        choices = [{"index": 0, "message": message, "finish_reason": _reason(answer)}]
        return {"object": "chat.completion", **self._about(), "choices": choices}

    def _about(self) -> dict[str, Any]:
        return {"id": f"local-{time.time_ns()}", "created": int(time.time()), "model": self._name}

    def _prompts(self, request: Mapping[str, Any]) -> list[list[int]]:
        prompt = request.get("prompt")
        several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
        if several and len(prompt) > MOST_PROMPTS:
            raise BadRequestError(f"'prompt' is a list of more than {MOST_PROMPTS}")
        found = []
        for one in prompt if several else [prompt]:  # type: ignore[union-attr]
            ids = self._encode(one) if isinstance(one, str) else one
            if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
                raise BadRequestError("'prompt' must be a text, a list of ids, or a list of either")
            if not ids:
                raise BadRequestError("'prompt' is empty")
            if not all(0 <= token < len(self._tokenizer) for token in ids):
                raise BadRequestError(f"'prompt' has an id outside the vocabulary of {len(self._tokenizer)}")
            found.append(ids)
        return found

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False).input_ids

    def _generate(self, ids: list[int], request: Mapping[str, Any]) -> Answer:
        stop = request.get("stop") or []
        most = request.get("max_tokens") or request.get("max_completion_tokens") or 16
        if type(most) is not int or not 0 < most <= MOST_TOKENS:
            raise BadRequestError(f"max_tokens must be a whole number from 1 to {MOST_TOKENS}, not {most!r}")
        return self._queue.generate(ids, most, [stop] if isinstance(stop, str) else list(stop))

    def _echoed(self, ids: list[int], most: Any) -> dict[str, Any]:
        """The prompt and at most one token more, each with its log-probability; the first has none."""
        if most not in (0, 1):
            raise BadRequestError(f"with 'echo' max_tokens must be 0 or 1, not {most}")
        scores = self._queue.score(ids)
        shown = ids + [scores[-1].best_id] * most
        texts, known = list(map(self._names.of, shown)), scores[: len(shown) - 1]
        places = Places(self._tokenizer, prompt=shown)
        return {
            "text": self._tokenizer.decode(shown),
            "finish_reason": "length",
            "logprobs": {
                "tokens": texts,
                "token_logprobs": [None, *(score.logprob for score in known)],
                "top_logprobs": [None, *({self._names.of(score.best_id): score.best_logprob} for score in known)],
                "text_offset": list(map(places.of, shown)),
            },
        }


def _reason(answer: Answer) -> str:
    return "length" if answer.cut else "stop"


def require_greedy(request: Mapping[str, Any]) -> None:
    """Refuse what would be answered differently from how it was asked.

    Raises:
        BadRequestError: sampling, several answers, or streaming.
    """
    temperature = request.get("temperature")
    if temperature is None or temperature > GREEDY_TEMPERATURE:
        raise BadRequestError(f"answers are greedy: temperature must be 0, not {temperature}")
    if (request.get("n") or 1) != 1 or (request.get("best_of") or 1) != 1:
        raise BadRequestError("one answer per request: n must be 1")
    if request.get("stream"):
        raise BadRequestError("answers are sent whole: stream must be false")
