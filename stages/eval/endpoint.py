"""A small OpenAI-compatible server over a transformers model, on this machine only, for as long as it is needed.

    with serve(model, tokenizer, name="tiny", batch_size=16) as url:     # http://127.0.0.1:41234
        ...

GET /health and /v1/models; POST /v1/completions (with `echo` and `logprobs`, which scoring by likelihood needs)
and /v1/chat/completions. Answers are greedy: a request with another temperature is refused, not bent.
"""

import json
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from typing import Any

from stages.eval.batching import ModelQueue

# Below this lm-eval's own `temperature` is greedy in all but name.
GREEDY_TEMPERATURE = 1e-6
LOOPBACK = "127.0.0.1"


class BadRequestError(ValueError):
    """A request that cannot be answered as it asks to be."""


@contextmanager
def serve(model: Any, tokenizer: Any, *, name: str, batch_size: int) -> Generator[str]:
    """The base URL of a server that ends with the block."""
    with ModelQueue(model, tokenizer, batch_size) as queue, _Server(Answers(queue, name)) as server:
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

    def __init__(self, answers: "Answers") -> None:
        super().__init__((LOOPBACK, 0), _Handler)
        self.answers = answers


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Server"  # ty: ignore[incompatible-mutable-override]

    def do_GET(self) -> None:
        self._answer(self.server.answers.gets, lambda make: make())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(self.server.answers.posts, lambda make: make(_json_object(body)))

    def _answer(self, routes: Mapping[str, Callable[..., dict[str, Any]]], call: Callable[..., dict[str, Any]]) -> None:
        make = routes.get(self.path.partition("?")[0].rstrip("/"))
        if make is None:
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
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Thousands of lines that nobody reads."""


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error"}}


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except ValueError as error:
        raise BadRequestError(f"the body is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadRequestError("the body is not a JSON object")
    return content


class Answers:
    """What each route answers, without the network around it."""

    def __init__(self, queue: ModelQueue, name: str) -> None:
        self._queue, self._name, self._tokenizer = queue, name, queue.tokenizer
        model = {"id": name, "object": "model", "owned_by": "local"}
        self.gets = {
            "/health": lambda: {"status": "ok"},  # ready as soon as it can be asked
            "/v1/models": lambda: {"object": "list", "data": [model]},
        }
        self.posts = {"/v1/completions": self.completions, "/v1/chat/completions": self.chat_completions}

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
                choice = {"text": self._generate(ids, request), "logprobs": None, "finish_reason": "stop"}
            choices.append({"index": len(choices), **choice})
        return {"object": "text_completion", **self._about(), "choices": choices}

    def chat_completions(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer the conversation with the model's own chat template."""
        require_greedy(request)
        messages = request.get("messages")
        if not isinstance(messages, list) or not messages:
            raise BadRequestError("'messages' must be a list of messages")
        prompt = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        message = {"role": "assistant", "content": self._generate(self._encode(prompt), request)}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return {"object": "chat.completion", **self._about(), "choices": choices}

    def _about(self) -> dict[str, Any]:
        return {"id": f"local-{time.time_ns()}", "created": int(time.time()), "model": self._name}

    def _prompts(self, request: Mapping[str, Any]) -> list[list[int]]:
        prompt = request.get("prompt")
        several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
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

    def _generate(self, ids: list[int], request: Mapping[str, Any]) -> str:
        stop = request.get("stop") or []
        most = request.get("max_tokens") or request.get("max_completion_tokens") or 16
        return self._queue.generate(ids, int(most), [stop] if isinstance(stop, str) else list(stop))

    def _echoed(self, ids: list[int], most: Any) -> dict[str, Any]:
        """The prompt and at most one token more, each with its log-probability; the first has none."""
        if most not in (0, 1):
            raise BadRequestError(f"with 'echo' max_tokens must be 0 or 1, not {most}")
        scores = self._queue.score(ids)
        shown = ids + [scores[-1].best_id] * most
        texts, known = [self._tokenizer.decode([token]) for token in shown], scores[: len(shown) - 1]
        return {
            "text": self._tokenizer.decode(shown),
            "finish_reason": "length",
            "logprobs": {
                "tokens": texts,
                "token_logprobs": [None, *(score.logprob for score in known)],
                "top_logprobs": [None, *({self._tokenizer.decode([s.best_id]): s.best_logprob} for s in known)],
                "text_offset": list(accumulate(map(len, texts[:-1]), initial=0)),
            },
        }


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
