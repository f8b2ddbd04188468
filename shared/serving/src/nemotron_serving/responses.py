"""The Responses API (POST /v1/responses), the parts that its clients use: a request becomes a chat, an answer items.

    {"input": "2+2?", "instructions": "Be brief."}
->  {"object": "response", "status": "completed", "output": [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "2+2=4"}], ...},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "4", ...}], ...}]}

Tools that OpenAI runs itself, such as its web search, are refused. Some clients refer to earlier items by id: the
newest items are kept in memory, unless a request says `store: false`.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemotron_data.chat.answers import Piece
from nemotron_data.chat.prompt import conversation_of
from nemotron_serving.asked import Flag, Length, Share, Text, without_nothing
from nemotron_serving.model import Choice
from nemotron_shared.system.errors import UserError

MOST_KEPT = 4096
"""Items in memory."""
NOTHING: Mapping[str, tuple[Any, ...]] = {
    "background": (False,), "conversation": (), "max_tool_calls": (), "moderation": (), "previous_response_id": (),
    "prompt": (), "top_logprobs": (0,), "truncation": ("disabled",), "context_management": (),
}  # fmt: skip
"""Fields that are not implemented here, each with the values, besides null, that ask for nothing."""
LOGPROBS = "message.output_text.logprobs"


class FunctionTool(BaseModel):
    """A tool of the client."""

    model_config = ConfigDict(extra="allow")
    type: Literal["function"]
    name: Text
    parameters: dict[str, Any] | None = None


class NamedTool(BaseModel):
    """The tool that must be called."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["function"]
    name: Text


class Reasoning(BaseModel):
    """How much to reason; a thought is returned as it is, for every value of `summary`."""

    model_config = ConfigDict(extra="forbid")
    effort: Text | None = None
    summary: Text | None = None
    generate_summary: Text | None = None


class TextOptions(BaseModel):
    """The form of the text."""

    model_config = ConfigDict(extra="forbid")
    format: dict[str, Any] | None = None
    verbosity: Literal["medium"] | None = None


class StreamOptions(BaseModel):
    """Options of a stream, all without effect here."""

    model_config = ConfigDict(extra="forbid")
    include_obfuscation: Flag | None = None


class ResponseRequest(BaseModel):
    """The request. Fields that a chat has, too, have its types and limits; see `as_chat`."""

    model_config = ConfigDict(extra="forbid")

    input: Text | Annotated[list[dict[str, Any]], Field(min_length=1)]
    model: Text | None = None
    instructions: Text | None = None
    max_output_tokens: Length | None = None
    temperature: Annotated[float, Field(strict=True, ge=0, le=2)] | None = None
    top_p: Share | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: Flag | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    stream: Flag | None = False
    store: Flag | None = True
    # no effect on an answer
    include: list[Text] | None = None
    stream_options: StreamOptions | None = None
    metadata: dict[str, Any] | None = None
    user: Text | None = None
    service_tier: Text | None = None
    prompt_cache_key: Text | None = None
    prompt_cache_retention: Text | None = None
    safety_identifier: Text | None = None

    @model_validator(mode="before")
    @classmethod
    def without_what_asks_for_nothing(cls, given: Any) -> Any:
        """Leave out the fields of `NOTHING`, and refuse those with other values."""
        return without_nothing(given, NOTHING)

    @model_validator(mode="after")
    def wants_no_logprobs(self) -> "ResponseRequest":
        """Refuse what would be missing from the answer."""
        if LOGPROBS in (self.include or ()):
            raise ValueError(f"include: {LOGPROBS} is not supported here: ask /v1/chat/completions")
        return self


class Kept:
    """The newest items, by id."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def add(self, items: Sequence[dict[str, Any]]) -> None:
        """Keep these, and forget the oldest."""
        for item in items:
            self._items[item["id"]] = item
        while len(self._items) > MOST_KEPT:
            self._items.popitem(last=False)

    def resolved(self, items: str | Sequence[Mapping[str, Any]]) -> str | list[Mapping[str, Any]]:
        """The items, with those that are only referred to.

        Raises:
            UserError: an item is not known, or not any more.
        """
        if isinstance(items, str):
            return items
        made: list[Mapping[str, Any]] = []
        for item in items:
            if item.get("type") != "item_reference":
                made.append(item)
            elif (found := self._items.get(str(item.get("id")))) is not None:
                made.append(found)
            else:
                what = f"input: no item '{str(item.get('id'))[:100]}' is kept here"
                raise UserError(what, "send the items themselves, as clients do with store: false")
        return made


def as_chat(wanted: ResponseRequest, asked: Mapping[str, Any], kept: Kept) -> dict[str, Any]:
    """The body of the same request to /v1/chat/completions.

    Args:
        asked: the request as it was sent: tools keep their order of keys.

    Raises:
        UserError: an item that no chat template can show.
    """
    messages, tools = conversation_of({**asked, "input": kept.resolved(wanted.input)})
    form = (wanted.text.format if wanted.text else None) or {"type": "text"}
    if form.get("type") == "json_schema":
        form = {"type": "json_schema", "json_schema": {name: form[name] for name in form if name != "type"}}
    choice: Any = wanted.tool_choice
    if isinstance(choice, NamedTool):
        choice = {"type": "function", "function": {"name": choice.name}}
    body = {
        "model": wanted.model, "messages": messages, "tools": tools, "tool_choice": choice, "response_format": form,
        "max_completion_tokens": wanted.max_output_tokens, "parallel_tool_calls": wanted.parallel_tool_calls,
        "reasoning_effort": wanted.reasoning.effort if wanted.reasoning else None,
        "temperature": wanted.temperature, "top_p": wanted.top_p,
    }  # fmt: skip
    return {name: value for name, value in body.items() if value is not None}


class Items:
    """Makes the items of an answer, and the events that tell of them, from its pieces."""

    def __init__(self, wanted: ResponseRequest, model: str) -> None:
        self.output: list[dict[str, Any]] = []
        self._open: str | None = None
        self._blank = ""
        self._number = -1
        text = wanted.text.model_dump(exclude_none=True) if wanted.text else {}
        self.about = {
            "id": f"resp_{secrets.token_hex(12)}", "object": "response", "created_at": int(time.time()), "error": None,
            "incomplete_details": None, "instructions": wanted.instructions, "metadata": wanted.metadata or {},
            "max_output_tokens": wanted.max_output_tokens, "model": model, "output": [],
            "parallel_tool_calls": wanted.parallel_tool_calls is not False, "previous_response_id": None,
            "temperature": 1.0 if wanted.temperature is None else wanted.temperature,
            "top_p": 1.0 if wanted.top_p is None else wanted.top_p, "store": wanted.store is not False,
            "text": {"format": {"type": "text"}, **text}, "truncation": "disabled", "status": "in_progress",
            "tool_choice": wanted.model_dump(include={"tool_choice"})["tool_choice"] or "auto",
            "tools": [tool.model_dump() for tool in wanted.tools or ()], "user": wanted.user,
            "reasoning": {"effort": wanted.reasoning.effort if wanted.reasoning else None, "summary": None},
        }  # fmt: skip

    def begin(self) -> list[dict[str, Any]]:
        """Events before the first item."""
        return [self.event(f"response.{kind}", response=self.about) for kind in ("created", "in_progress")]

    def feed(self, pieces: Sequence[Piece]) -> list[dict[str, Any]]:
        """Events of new pieces. Blank text between other items is dropped."""
        events = []
        for piece in pieces:
            if piece.call:
                self._blank = ""
                events += [*self._closed(), *self._called(piece)]
            elif piece.kind == self._open:
                events.append(self._added(piece.text))
            else:
                self._blank += piece.text
                if self._blank.strip():
                    text, self._blank = self._blank, ""
                    events += [*self._closed(), *self._opened(piece.kind), self._added(text)]
        return events

    def end(self) -> list[dict[str, Any]]:
        """Events of the last item. There is always one: an answer without words is an empty message."""
        opened = [] if self.output or self._open else list(self._opened("content"))
        return [*opened, *self._closed()]

    def whole(self, choice: Choice, usage: Mapping[str, int]) -> dict[str, Any]:
        """The response."""
        cut = choice.reason == "length"
        counts = {
            "input_tokens": usage["prompt_tokens"], "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage["completion_tokens"], "output_tokens_details": {"reasoning_tokens": choice.thought},
            "total_tokens": usage["total_tokens"],
        }  # fmt: skip
        return self.about | {
            "status": "incomplete" if cut else "completed", "output": self.output, "usage": counts,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        }  # fmt: skip

    def event(self, kind: str, **content: Any) -> dict[str, Any]:
        """One event, with its number."""
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **content}

    @property
    def _place(self) -> dict[str, Any]:
        """Where the newest item is."""
        return {"item_id": self.output[-1]["id"], "output_index": len(self.output) - 1}

    def _opened(self, kind: str) -> Iterator[dict[str, Any]]:
        """Begin a thought or a message."""
        self._open = kind
        if kind == "reasoning":
            self.output.append({"type": "reasoning", "id": f"rs_{secrets.token_hex(12)}", "summary": []})
        else:
            self.output.append({"type": "message", "id": f"msg_{secrets.token_hex(12)}", "role": "assistant",
                                "status": "in_progress", "content": []})  # fmt: skip
        yield self.event("response.output_item.added", output_index=len(self.output) - 1, item=_copy(self.output[-1]))
        part = self._part("")
        self._parts.append(part)
        yield self.event(f"response.{self._told_as[0]}.added", **self._place, **self._index, part=dict(part))

    @property
    def _parts(self) -> list[dict[str, Any]]:
        return self.output[-1]["summary" if self._open == "reasoning" else "content"]

    @property
    def _told_as(self) -> tuple[str, str]:
        """Names of the events of a part, and of its text."""
        thought = self._open == "reasoning"
        return ("reasoning_summary_part", "reasoning_summary_text") if thought else ("content_part", "output_text")

    @property
    def _index(self) -> dict[str, int]:
        return {"summary_index" if self._open == "reasoning" else "content_index": 0}

    def _part(self, text: str) -> dict[str, Any]:
        if self._open == "reasoning":
            return {"type": "summary_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _added(self, text: str) -> dict[str, Any]:
        self._parts[0]["text"] += text
        more = {} if self._open == "reasoning" else {"logprobs": []}
        return self.event(f"response.{self._told_as[1]}.delta", **self._place, **self._index, delta=text, **more)

    def _closed(self) -> Iterator[dict[str, Any]]:
        """End the thought or message that is open."""
        if self._open is None:
            return
        (part,) = self._parts
        more = {} if self._open == "reasoning" else {"logprobs": []}
        yield self.event(f"response.{self._told_as[1]}.done", **self._place, **self._index, text=part["text"], **more)
        yield self.event(f"response.{self._told_as[0]}.done", **self._place, **self._index, part=dict(part))
        if self._open != "reasoning":
            self.output[-1]["status"] = "completed"
        self._open = None
        yield self.event("response.output_item.done", output_index=len(self.output) - 1, item=_copy(self.output[-1]))

    def _called(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """A call: all of it at once, because calls are reported only when they are complete."""
        assert piece.call is not None
        item = {"type": "function_call", "id": f"fc_{secrets.token_hex(12)}", "call_id": f"call_{secrets.token_hex(8)}",
                "name": piece.call.name, "arguments": piece.call.arguments, "status": "completed"}  # fmt: skip
        self.output.append(item)
        place = len(self.output) - 1
        begun = item | {"arguments": "", "status": "in_progress"}
        yield self.event("response.output_item.added", output_index=place, item=begun)
        said = "response.function_call_arguments"
        yield self.event(f"{said}.delta", **self._place, delta=item["arguments"])
        yield self.event(f"{said}.done", **self._place, name=item["name"], arguments=item["arguments"])
        yield self.event("response.output_item.done", output_index=place, item=item)


def _copy(item: Mapping[str, Any]) -> dict[str, Any]:
    """The item as it is now."""
    return {name: [dict(part) for part in value] if isinstance(value, list) else value for name, value in item.items()}
