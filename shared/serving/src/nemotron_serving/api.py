"""Routes of the server: OpenAI's completions, for one model.

GET /v1/models /health /metrics and / (a chat page); POST /v1/chat/completions, /v1/completions and /v1/responses.
"""

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import orjson
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from nemotron_data.chat.answers import Text
from nemotron_data.chat.prompt import Prompt, asked_messages
from nemotron_data.chat.rows import Message
from nemotron_data.chat.shown import NAMES, SYSTEM, TOOLS, told
from nemotron_data.chat.thought import OPEN
from nemotron_serving.asked import Asked, ChatCompletion, Completion, StreamOptions
from nemotron_serving.batch import CannotAnswer, Full, TokenScore
from nemotron_serving.grammar import Constraint
from nemotron_serving.model import Choice, Model, merged
from nemotron_serving.responses import Items, Kept, ResponseRequest, as_chat
from nemotron_serving.sampling import COLDEST, Sampling, Token
from nemotron_serving.server import ENDING, Guard, Refusal, json_of
from nemotron_serving.wire import Wire, tokens_in, usage
from nemotron_shared.system.console import say
from nemotron_shared.system.errors import UserError


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


def named_event(content: dict[str, Any]) -> bytes:
    """One event of a response, with its name."""
    return f"event: {content['type']}\n".encode() + event(content)


async def page(request: Request) -> Response:
    """The chat page: one file, allowed to connect to this server only."""
    html = (files("nemotron_serving") / "page.html").read_text(encoding="utf-8")
    hashes = {tag: base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
              for tag, inner in re.findall(r"<(style|script)>(.*?)</\1>", html, re.DOTALL)}  # fmt: skip
    policy = f"default-src 'none'; style-src 'sha256-{hashes['style']}'; script-src 'sha256-{hashes['script']}'; "
    policy += "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return HTMLResponse(html, headers={"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"})


COMPLETION_TOKENS = 16
"""OpenAI's default length for /v1/completions."""
RETRY_SECONDS = 2


@dataclass(frozen=True)
class Api:
    """Handlers of all routes.

    Attributes:
        names: names that requests may use for the model; the first one is used in responses.
        most_tokens: maximum length of chat answers, unless the request sets one.
        whole_answers: leave thoughts and calls in the content of chat answers, as the model wrote them; a thought
            that the prompt has opened begins with its tag.
        hear: called with each chat that was answered at once, and the answer.
        told: warnings already printed in the terminal.
        kept: items of responses, to which later requests may refer.
    """

    model: Model
    names: tuple[str, ...]
    most_tokens: int
    whole_answers: bool = False
    hear: Callable[[Sequence[Message], Choice], None] | None = None
    told: set[str] = field(default_factory=set)
    kept: Kept = field(default_factory=Kept)

    def app(self, key: str | None) -> Starlette:
        """The application; `key` is the API key that clients must send, if any."""
        routes = [
            Route("/", page),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.models),
            Route("/v1/completions", _answered(self.completions), methods=["POST"]),
            Route("/v1/chat/completions", _answered(self.chat), methods=["POST"]),
            Route("/v1/responses", _answered(self.responses), methods=["POST"]),
        ]
        handlers: dict[Any, Any] = {Refusal: _refused, HTTPException: _http_error, Exception: _our_error}
        return Starlette(routes=routes, middleware=[Middleware(Guard, key=key)], exception_handlers=handlers)

    async def health(self, request: Request) -> Response:
        """Available as soon as the server is ready."""
        return JSONResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        """The model, under each of its names."""
        about = {"object": "model", "created": 0, "owned_by": "nemotron", "max_model_len": self.model.context}
        listed = [{"id": name, **about} for name in self.names]
        wanted = request.path_params.get("name")
        if wanted is None:
            return JSONResponse({"object": "list", "data": listed})
        self._require_name(wanted)
        return JSONResponse({"id": wanted, **about})

    async def metrics(self, request: Request) -> Response:
        """Metrics in Prometheus format."""
        running, waiting = self.model.batch.load
        values = {
            "requests_running": running,
            "requests_waiting": waiting,
            "tokens_total": self.model.batch.tokens_made,
        }
        return PlainTextResponse("".join(f"nemotron_{name} {value}\n" for name, value in values.items()))

    async def completions(self, request: Request, asked: dict[str, Any]) -> Response:
        """Continue each prompt (text, ids, or a list of either), or score it with `echo` and `logprobs`."""
        wanted = Completion.model_validate(asked)
        self._require_name(wanted.model)
        if wanted.echo and (wanted.logprobs or 0) > 1:
            raise Refusal(400, "with echo, logprobs must be 0 or 1")
        prompts = [self._prompt(prompt) for prompt in wanted.prompts]
        most = COMPLETION_TOKENS if wanted.max_tokens is None else wanted.max_tokens
        for prompt in prompts:
            self.model.room(prompt, most, most)
        wire = Wire(self.names[0], self.model.tokenizer, chat=False, logprobs=wanted.logprobs is not None)
        scores: list[list[TokenScore]] = []
        if wanted.echo and wanted.logprobs is not None:
            scores = await self._scores(prompts)
        texts = [Text(self.model.tokenizer, wanted.stops, markup=False) for _ in range(len(prompts) * (wanted.n or 1))]
        greedy = wanted.temperature is not None and wanted.temperature <= COLDEST
        if scores and most == 1 and greedy and (wanted.n or 1) == 1:
            choices = [
                Choice(index, prompt, text) for index, (prompt, text) in enumerate(zip(prompts, texts, strict=True))
            ]
            for choice, found in zip(choices, scores, strict=True):  # already known: nothing is computed twice
                best = found[-1]
                choice.tokens.append(Token(best.best_id, best.best_logprob, ((best.best_id, best.best_logprob),)))
                choice.pieces += choice.text.feed(best.best_id) + choice.text.end()
                choice.reason = "length"
        else:
            choices = self._begin(wanted, prompts, texts, most, wanted.logprobs)
            if wanted.stream:
                return self._stream(wire, wanted, prompts, choices)
            await _whole(request, choices)
        if wanted.echo:
            made = [wire.echoed(one.prompt.ids, scores[one.index // (wanted.n or 1)] if scores else [], one)
                    for one in choices]  # fmt: skip
        else:
            made = [wire.choice(one) for one in choices]
        return JSONResponse(wire.whole(made, usage([prompt.ids for prompt in prompts], tokens_in(choices))))

    async def chat(self, request: Request, asked: dict[str, Any]) -> Response:
        """Answer the conversation, using the model's chat template."""
        wanted = ChatCompletion.model_validate(asked)
        messages, prompt, choices = await self._chosen(wanted, asked)
        wire = Wire(self.names[0], self.model.tokenizer, chat=True, logprobs=bool(wanted.logprobs))
        if wanted.stream:
            return self._stream(wire, wanted, [prompt], choices)
        await _whole(request, choices)
        if self.hear:
            self.hear(messages, choices[0])
        return JSONResponse(wire.whole([wire.choice(one) for one in choices], usage([prompt.ids], tokens_in(choices))))

    async def responses(self, request: Request, asked: dict[str, Any]) -> Response:
        """The same by the Responses API."""
        wanted = ResponseRequest.model_validate(asked)
        body = as_chat(wanted, asked, self.kept)
        _, prompt, choices = await self._chosen(ChatCompletion.model_validate(body), body)
        items = Items(wanted, self.names[0])
        if wanted.stream:
            return Streamed(self._response_events(items, wanted, prompt, choices[0]), choices)
        await _whole(request, choices)
        items.feed(choices[0].pieces)
        items.end()
        return JSONResponse(self._response(items, wanted, prompt, choices[0]))

    async def _response_events(
        self, items: Items, wanted: ResponseRequest, prompt: Prompt, choice: Choice
    ) -> AsyncIterator[bytes]:
        try:
            for told in items.begin():
                yield named_event(told)
            async for pieces, _ in choice.updates():
                for told in items.feed(pieces):
                    yield named_event(told)
            for told in items.end():
                yield named_event(told)
            response = self._response(items, wanted, prompt, choice)
            yield named_event(items.event(f"response.{response['status']}", response=response))
        except Exception as error:  # the status has been sent already
            content = Refusal(500, f"{type(error).__name__}: {error}").content
            yield named_event(items.event("error", **content, **content["error"] | {"type": "error"}))

    def _response(self, items: Items, wanted: ResponseRequest, prompt: Prompt, choice: Choice) -> dict[str, Any]:
        """The finished response, whose items are kept."""
        if wanted.store is not False:
            self.kept.add(items.output)
        return items.whole(choice, usage([prompt.ids], tokens_in([choice])))

    async def _chosen(
        self, wanted: ChatCompletion, asked: dict[str, Any]
    ) -> tuple[list[Message], Prompt, list[Choice]]:
        """Begin the answers to a conversation; returns it, and its prompt, with them.

        Args:
            asked: the request as it was sent: a validated copy has another order of keys, and additional nulls.
        """
        self._require_name(wanted.model)
        tools = [] if wanted.tool_choice == "none" else asked.get("tools") or []
        options = self._thinking(wanted) | (wanted.chat_template_kwargs or {})
        messages = asked_messages(wanted.messages)
        shown = [] if "tools" in options else tools
        others = {name: option for name, option in options.items() if name != "tools"}
        if wanted.goes_on:
            prompt = self.model.prompter.continued(messages, shown or None, **others)
        else:
            begins = wanted.add_generation_prompt is not False
            prompt = self.model.prompter.chat(messages, shown or None, add_generation_prompt=begins, **others)
        self._require_shown(messages, shown)
        most = self.model.room(prompt, wanted.limit, self.most_tokens)
        begin = OPEN if self.whole_answers and prompt.in_thought else ""
        texts = [Text(self.model.tokenizer, wanted.stops, markup=not self.whole_answers, in_thought=prompt.in_thought,
                      tools=tools, begin=begin) for _ in range(wanted.n or 1)]  # fmt: skip
        tops = (wanted.top_logprobs or 0) if wanted.logprobs else None
        form = wanted.form(prompt.in_thought)
        constraint = None if form is None else await asyncio.to_thread(self.model.grammars.constraint, form)
        one_call = wanted.parallel_tool_calls is False
        choices = self._begin(wanted, [prompt], texts, most, tops, one_call=one_call, constraint=constraint)
        return messages, prompt, choices

    def _thinking(self, wanted: ChatCompletion) -> dict[str, Any]:
        """What `reasoning_effort` is to the chat template: its own level, or on and off.

        Raises:
            Refusal: the template has neither.
        """
        effort = wanted.reasoning_effort
        if effort is None:
            return {}
        switch = self.model.prompter.thinking_switch
        if switch is None:
            why = "the model's chat template has no switch for reasoning (reasoning_effort, enable_thinking, thinking)"
            raise Refusal(400, f"reasoning_effort: {why}: leave it out")
        return {switch: effort if switch == "reasoning_effort" else effort != "none"}

    def _begin(
        self, wanted: Asked, prompts: list[Prompt], texts: list[Text], most: int, logprobs: int | None,
        one_call: bool = False, constraint: Constraint | None = None,
    ) -> list[Choice]:  # fmt: skip
        """Start all answers, or none."""
        n = wanted.n or 1
        temperature = 1.0 if wanted.temperature is None else wanted.temperature
        more: dict[str, Any] = {"top_k": max(wanted.top_k or 0, 0), "min_p": wanted.min_p or 0.0}
        more |= {"repetition_penalty": wanted.repetition_penalty or 1.0, "ignore_eos": bool(wanted.ignore_eos)}
        choices: list[Choice] = []
        try:
            for index, text in enumerate(texts):
                seed = None if wanted.seed is None else (wanted.seed + index % n) % 2**63
                choice = Choice(index, prompts[index // n], text, one_call)
                sampling = Sampling(most, temperature, wanted.top_p or 1.0, seed, logprobs, **more)
                choice.begin(self.model, sampling, None if constraint is None else constraint.copy())
                choices.append(choice)
        except Full:
            for choice in choices:
                choice.cancel()
            raise
        return choices

    async def _scores(self, prompts: list[Prompt]) -> list[list[TokenScore]]:
        """Scores of every prompt's tokens."""
        return await asyncio.gather(*(asyncio.wrap_future(self.model.batch.score(prompt.ids)) for prompt in prompts))

    def _stream(self, wire: Wire, wanted: Asked, prompts: list[Prompt], choices: list[Choice]) -> Response:
        told = wanted.stream_options or StreamOptions()
        made = 0  # in the chunks so far: the answers themselves may be ahead of them

        def used() -> dict[str, int]:
            return usage([prompt.ids for prompt in prompts], made)

        async def events() -> AsyncIterator[bytes]:
            nonlocal made
            try:
                first = [wire.first(choice) for choice in choices] if isinstance(wanted, ChatCompletion) else []
                for delta in first:
                    yield event(wire.chunk([delta], used() if told.continuous_usage_stats else None))
                async for choice, pieces, token in merged(choices):
                    made += choice.ended if token is None else 1
                    for delta in [*wire.deltas(choice, pieces, token), *([wire.last(choice)] if token is None else [])]:
                        yield event(wire.chunk([delta], used() if told.continuous_usage_stats else None))
                if told.include_usage:
                    yield event(wire.chunk([], used()))
                yield b"data: [DONE]\n\n"
            except Exception as error:  # the status has been sent already
                yield event(Refusal(500, f"{type(error).__name__}: {error}").content)

        return Streamed(events(), choices)

    def _require_shown(self, messages: list[Message], tools: list[dict[str, Any]]) -> None:
        """Refuse calls and results that the template does not show, because the answer would be meaningless.

        A model may know its tools by heart, or need no system prompt: if these are not shown, warn once in the
        terminal.
        """
        hidden = self.model.prompter.hidden(messages, tools)
        if lost := [kind for kind in hidden if kind not in (SYSTEM, TOOLS, NAMES)]:
            raise Refusal(400, f"{told(lost)}: leave them out, or ask a model whose chat template has them")
        for kind in set(hidden) - self.told:
            self.told.add(kind)
            say(f"WARNING: {told([kind])}: the model does not see those of requests")

    def _require_name(self, name: str | None) -> None:
        if name is not None and name not in self.names:
            raise Refusal(404, f"no model '{name[:100]}'; there is: {', '.join(self.names)}", "model_not_found")

    def _prompt(self, prompt: str | list[int]) -> Prompt:
        """Control token names in a raw prompt become tokens, because its author also writes the template's part."""
        made = self.model.prompter.text(prompt, control=True) if isinstance(prompt, str) else Prompt(prompt)
        if not made.ids:
            raise Refusal(400, "prompt is empty")
        if max(made.ids) >= len(self.model.tokenizer):
            raise Refusal(400, f"prompt has an id outside the vocabulary of {len(self.model.tokenizer)}")
        return made


async def _whole(request: Request, choices: list[Choice]) -> None:
    """Wait for all answers, unless the client disconnects first."""

    async def gone() -> None:
        while not await request.is_disconnected():
            await asyncio.sleep(0.2)

    answering = asyncio.gather(*(choice.finish() for choice in choices))
    # a cancelled one is never awaited, which asyncio would log as an error
    answering.add_done_callback(lambda done: done.cancelled() or done.exception())
    leaving = asyncio.create_task(gone())
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise Refusal(499, "the client has gone")
        await answering
    finally:
        leaving.cancel()
        answering.cancel()
        for choice in choices:
            choice.cancel()


def _answered(
    make: Callable[[Request, dict[str, Any]], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """Wrap a handler so that its errors have OpenAI's format."""

    async def route(request: Request) -> Response:
        try:
            return await make(request, await json_of(request))
        except Full as error:
            refusal = Refusal(429, f"{error}: try again in {RETRY_SECONDS} seconds", retry_after=str(RETRY_SECONDS))
            return refusal.response()
        except ValidationError as error:
            wrong = "; ".join(_said(one) for one in error.errors(include_url=False, include_input=False)[:5])
            return Refusal(400, wrong).response()
        except CannotAnswer as error:
            return Refusal(500, str(error)).response()
        except (UserError, ValueError) as error:
            code = "context_length_exceeded" if "context is" in str(error) else None
            return Refusal(400, str(error), code).response()

    return route


def _said(problem: Any) -> str:
    place = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    known = "no such field" if problem["type"] == "extra_forbidden" else message
    return f"{place[:200]}: {known}" if place else known


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return error.response()


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return Refusal(error.status_code, f"{request.method} {request.url.path[:200]}: {error.detail}").response()


async def _our_error(request: Request, error: Exception) -> Response:
    return Refusal(500, f"{type(error).__name__}: the server failed; its terminal says more").response()
