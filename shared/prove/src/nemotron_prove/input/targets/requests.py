"""What clients send to the server: the routes of both kinds of completions, up to where the model would begin."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from tokenizers import Tokenizer

from nemotron_data.chat.prompt import Prompter
from nemotron_data.tokenizers.tiny import CHAT_TEMPLATE, build_tokenizer
from nemotron_prove.input.second import fault_of, is_count, is_number, json_value, require
from nemotron_prove.input.target import Files, Target
from nemotron_serving.api import Api, _answered
from nemotron_serving.batch import Full
from nemotron_serving.model import Model
from nemotron_serving.server import Refusal
from nemotron_shared.errors import UserError

CONTEXT = 4096
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
TURNS = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "2+2?"}]}]
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
CHATS = (
    {
        "model": "tiny",
        "messages": [{"role": "user", "content": "2+2?"}],
        "max_tokens": 8,
        "temperature": 0.5,
        "seed": 1,
    },
    {"messages": TURNS, "tools": [TOOL], "tool_choice": "auto", "stop": ["x"], "n": 2, "top_p": 0.9, "logprobs": True},
    {
        "messages": [
            *TURNS,
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "content": "3", "tool_call_id": "c"},
        ],
        "chat_template_kwargs": {"enable_thinking": False},
        "stream": True,
        "stream_options": {"include_usage": True},
    },
)
TEXTS = (
    {"model": "tiny", "prompt": "2+2=", "max_tokens": 4, "temperature": 0, "logprobs": 1, "echo": True},
    {"prompt": ["a", "b"], "n": 2, "stop": "x"},
    {"prompt": [11, 12]},
    {"prompt": [[11], [12, 13]], "seed": -3},
)


class Encoded:
    """The tokenizer as transformers would give it, without importing that."""

    chat_template = CHAT_TEMPLATE
    bos_token, eos_token, pad_token, unk_token = "<s>", "<|im_end|>", "<pad>", "<unk>"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.added_tokens_decoder = tokenizer.get_added_tokens_decoder()
        self.all_special_ids = [number for number, token in self.added_tokens_decoder.items() if token.special]

    def __call__(self, text: str, add_special_tokens: bool) -> SimpleNamespace:
        return SimpleNamespace(input_ids=self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def get_vocab(self) -> dict[str, int]:
        """Id of each token."""
        return self._tokenizer.get_vocab()

    def convert_ids_to_tokens(self, number: int) -> str | None:
        """The token of an id."""
        return self._tokenizer.id_to_token(number)

    def decode(self, ids: list[int]) -> str:
        """Ids as text."""
        return self._tokenizer.decode(ids)


@cache
def _api() -> Api:
    tokenizer = Encoded(build_tokenizer())

    def begin(*_: object, **__: object) -> None:
        raise Full("valid")

    model = SimpleNamespace(
        tokenizer=tokenizer,
        prompter=Prompter(tokenizer, CONTEXT),
        context=CONTEXT,
        batch=SimpleNamespace(generate=begin, score=begin),
    )
    model.room = lambda *words: Model.room(model, *words)  # ty: ignore[invalid-argument-type]
    return Api(model, ("tiny",), 256)  # ty: ignore[invalid-argument-type]


def _ask(route: Callable[[Request], Awaitable[Response]], body: bytes) -> Response:
    """The response of a route; the model's own work is not begun."""
    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")], "path": "/"}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def answer() -> Response:
        try:
            return await route(Request(scope, receive))
        except Refusal as refusal:
            return refusal.response()

    return asyncio.run(answer())


def _use(name: str) -> Callable[[Path, Files], bytes]:
    def use(folder: Path, files: Files) -> bytes:
        response = _ask(_answered(getattr(_api(), name)), files["body.json"])
        if response.status_code in (200, 429):  # it was about to begin, or asks for no token
            return b"accepted"
        said = json.loads(bytes(response.body))["error"]["message"]
        assert 400 <= response.status_code < 500, f"{response.status_code}: {said}"
        raise UserError(said, "the message is all that a client reads")

    return use


def _fault(chat: bool) -> Callable[[Files, object], str | None]:
    def fault(files: Files, made: object) -> str | None:
        return fault_of(lambda: _require(json_value(files["body.json"]), chat))

    return fault


def _require(body: Any, chat: bool) -> None:
    """OpenAI's reference of both routes, as far as the server takes it."""
    require(isinstance(body, dict), "no object")
    require(body.get("model") in (None, "tiny"), "another model")
    for name, low, high in (("temperature", 0, 2), ("top_p", 0, 1)):
        value = body.get(name)
        require(value is None or is_number(value), f"{name} that is no number")
        require(not is_number(value) or low <= value <= high, f"{name} out of its range")
    for name in ("max_tokens", "max_completion_tokens"):
        value = body.get(name)
        require(value is None or (is_count(value) and value <= CONTEXT), f"{name} that is no count")
    stops = body.get("stop")
    require("" not in (stops if isinstance(stops, list) else [stops]), "an empty stop")
    number = body.get("n")
    require(number is None or (is_count(number) and 1 <= number <= 16), "n that is no count")
    if chat:
        messages = body.get("messages")
        require(
            isinstance(messages, list) and messages and all(isinstance(one, dict) for one in messages), "no messages"
        )
        known = ("system", "developer", "user", "assistant", "tool", "function")
        require(all(one.get("role") in known for one in messages), "an unknown role")
        return
    prompt = body.get("prompt")
    require(isinstance(prompt, str | list) and prompt, "no prompt")
    flat = [
        one
        for part in (prompt if isinstance(prompt, list) else [])
        for one in (part if isinstance(part, list) else [part])
    ]
    require(
        all(isinstance(one, str) or (is_count(one) and one < 512) for one in flat), "an id outside of the vocabulary"
    )


def _bodies(*values: object) -> list[Files]:
    return [{"body.json": json.dumps(value).encode()} for value in values]


WORDS = (
    "messages",
    "role",
    "user",
    "prompt",
    "n",
    "seed",
    "stop",
    "<|im_end|>",
    "tools",
    "tool_calls",
    "enable_thinking",
)
TARGETS = (
    Target(
        "chat_request",
        "POST /v1/chat/completions",
        lambda: _bodies(*CHATS),
        _use("chat"),
        _fault(True),
        WORDS,
        share=1,
        in_files=False,
    ),
    Target(
        "text_request",
        "POST /v1/completions",
        lambda: _bodies(*TEXTS),
        _use("completions"),
        _fault(False),
        WORDS,
        share=1,
        in_files=False,
    ),
)
