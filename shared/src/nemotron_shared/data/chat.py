r"""Render conversations with a model's chat template, and know which characters the assistant wrote.

    [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]

becomes, with a ChatML template whose assistant part stands between {% generation %} and {% endgeneration %},

    <|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n
                                                             ~~~~~~~~~~~ the one span that is trained on

Templates see what transformers shows them, so the text and the mask are those of `apply_chat_template`.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from nemotron_shared.errors import UserError, did_you_mean

Message = dict[str, Any]
Span = tuple[int, int]

# Around generated text in a second rendering. U+FDD0 and U+FDD1 are reserved never to be characters of a text.
OPEN, CLOSE = "\ufdd0generation\ufdd1", "\ufdd1generation\ufdd0"
ADD_MARKS = "put {% generation %} ... {% endgeneration %} around what the assistant writes in the chat template"
ROLES = ("system", "user", "assistant", "tool")
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant"}
REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")


class _GenerationBlock(Extension):
    """{% generation %}, around text that the model writes: was one found, and are they to be marked?"""

    tags = {"generation"}  # noqa: RUF012  (jinja2 wants a plain set here)
    found = False
    marking = False

    def parse(self, parser: Parser) -> nodes.Node:
        self.found = True
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_generated"), [], [], body).set_lineno(line)

    def _generated(self, caller: Any) -> str:
        return f"{OPEN}{caller()}{CLOSE}" if self.marking else caller()


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """Plain JSON: jinja2's own filter escapes HTML, which a model should not learn."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


class ChatTemplate:
    """A compiled chat template, `source` being Jinja text as in chat_template.jinja.

    `special_tokens` are the names that templates use: `bos_token="<s>", eos_token="<|im_end|>"`. A template that
    prints the date gives the same text on every day with the option `strftime_now=some_datetime.strftime`.
    """

    def __init__(self, source: str, **special_tokens: str | None) -> None:
        self.source = source
        self._constants = {name: token for name, token in special_tokens.items() if token is not None}
        self._environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        self._environment.filters["tojson"] = _tojson
        functions = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        try:
            self._template = self._environment.from_string(source, functions)
        except jinja2.TemplateSyntaxError as error:
            raise UserError(f"chat template, line {error.lineno}: {error.message}", "correct the template") from error
        self._block: Any = self._environment.extensions[_GenerationBlock.identifier]
        self.has_generation_marks: bool = self._block.found

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        **options: Any,
    ) -> str:
        """The conversation as text. `options`, such as enable_thinking=False, reach the template as variables."""
        if tools is not None and not (isinstance(tools, list | tuple) and all(isinstance(t, dict) for t in tools)):
            raise UserError("tools is not a list of objects", "parse it first if it is JSON text")
        variables = {"tools": tools, "documents": None, "add_generation_prompt": add_generation_prompt}
        variables["messages"] = [_as_templates_expect(message) for message in messages]
        try:
            return self._template.render({**variables, **self._constants, **options})
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise UserError(f"the chat template refuses this conversation: {error}", "correct one of them") from error

    def render_with_spans(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None, **options: Any
    ) -> tuple[str, list[Span]]:
        """The text, and the [start, end) characters that the assistant wrote, in order and disjoint.

        Raises `UserError` where they cannot be known: training on the wrong text would go unnoticed.
        """
        text = self.render(messages, tools, **options)
        if self.has_generation_marks:
            spans = self._marked_spans(text, messages, tools, options)
        else:
            spans = self._spans_by_prefix(text, messages, tools, options)
        if not spans:
            raise UserError("the chat template shows nothing that the assistant wrote", ADD_MARKS)
        if spans == [(0, len(text))]:
            raise UserError("the chat template counts the whole text as the assistant's", ADD_MARKS)
        return text, spans

    def _marked_spans(self, text: str, messages: Any, tools: Any, options: dict[str, Any]) -> list[Span]:
        self._block.marking = True
        try:
            marked = self.render(messages, tools, **options)
        finally:
            self._block.marking = False
        pieces = [piece.split(CLOSE) for piece in marked.split(OPEN)]
        if "".join(map("".join, pieces)) != text or any(len(piece) != 2 for piece in pieces[1:]) or len(pieces[0]) > 1:
            raise UserError("the generated part of this conversation cannot be located", ADD_MARKS)
        spans, position = [], len(pieces[0][0])
        for inside, outside in pieces[1:]:
            spans.append((position, position + len(inside)))
            position += len(inside) + len(outside)
        return [(start, end) for start, end in spans if start < end]

    def _spans_by_prefix(self, text: str, messages: Any, tools: Any, options: dict[str, Any]) -> list[Span]:
        """Without marks: what turn i adds to the text that would have prompted the model to write it."""
        spans = []
        for i in (i for i, message in enumerate(messages) if message.get("role") == "assistant"):
            prompt = self.render(messages[:i], tools, add_generation_prompt=True, **options)
            answered = self.render(messages[: i + 1], tools, **options)
            if not (answered.startswith(prompt) and text.startswith(answered)):
                raise UserError(f"the chat template rewrites earlier text: turn {i} cannot be located", ADD_MARKS)
            # white space at the end separates turns, and the model never has to write it
            spans.append((len(prompt), len(answered.rstrip())))
        return [(start, end) for start, end in spans if start < end]


def _as_templates_expect(message: Message) -> Message:
    """Without null fields, and with the reasoning under every name that templates read it by."""
    given = {key: value for key, value in message.items() if value is not None}
    for name in REASONING_NAMES:
        if name in given:
            given["reasoning_content"] = given[name]
            given.setdefault("thinking", given[name])
            break
    return given


def tokenize_with_mask(tokenizer: Tokenizer, text: str, spans: Sequence[Span]) -> tuple[list[int], list[int]]:
    """Token ids of `text`, and for each a 1 where it shares a character with a span (disjoint, in order), else a 0.

    The mask is aligned with the ids: entry k is about token k. Nothing is added before or after the text. Raises
    `UserError` when every token would be trained on.
    """
    # a post-processor adds nothing here, but may trim spaces off the offsets, which then fit no character
    processor, tokenizer.post_processor = tokenizer.post_processor, None
    try:
        encoding = tokenizer.encode(text, add_special_tokens=False)
    finally:
        tokenizer.post_processor = processor
    mask, current = [], 0
    for start, end in encoding.offsets:
        while current < len(spans) and spans[current][1] <= start:
            current += 1
        mask.append(int(current < len(spans) and start < end and spans[current][0] < end))
    if mask and all(mask):
        raise UserError("the loss mask counts every token, the prompt included", ADD_MARKS)
    return encoding.ids, mask


@dataclass(frozen=True, slots=True)
class ChatFields:
    """Where a row keeps its conversation.

    messages         {"messages": [{"role": "user", "content": "2+2?"}, ...]}
    prompt_response  {"prompt": "2+2?", "response": "4"}
    sharegpt         {"conversations": [{"from": "human", "value": "2+2?"}, ...]}
    """

    format: Literal["messages", "prompt_response", "sharegpt"] = "messages"
    messages_field: str = "messages"
    prompt_field: str = "prompt"
    response_field: str = "response"
    conversations_field: str = "conversations"


def to_messages(row: dict[str, Any], fields: ChatFields) -> list[Message]:
    """The row's conversation as OpenAI-style messages, not yet validated.

    Tool call arguments that are JSON text become objects, which templates iterate over. Raises `UserError` when a
    field is missing.
    """
    if fields.format == "prompt_response":
        prompt, response = _field(row, fields.prompt_field), _field(row, fields.response_field)
        return [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]
    if fields.format == "messages":
        return _each(_field(row, fields.messages_field), _with_object_arguments)
    return _each(_field(row, fields.conversations_field), _from_sharegpt)


def _field(row: dict[str, Any], name: str) -> Any:
    if name not in row:
        raise UserError(f"no field '{name}' in this row", did_you_mean(name, row, f"it has {', '.join(row)}"))
    return row[name]


def _each(value: Any, convert: Callable[[Message], Message]) -> Any:
    """Convert what is an object; anything else stays for `validate_messages` to name."""
    if not isinstance(value, list):
        return value
    return [convert(item) if isinstance(item, dict) else item for item in value]


def _from_sharegpt(turn: Message) -> Message:
    role = turn.get("from")
    return {"role": SHAREGPT_ROLES.get(str(role), role), "content": turn.get("value")}


def _with_object_arguments(message: Message) -> Message:
    calls = message.get("tool_calls")
    return {**message, "tool_calls": _each(calls, _parsed_call)} if calls else message


def _parsed_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def validate_messages(messages: Any) -> str | None:
    """Why a conversation cannot be trained on, as one of a few fixed phrases to count by, or None if it can."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return "messages is not a list of objects"
    if not messages:
        return "no messages"
    call_ids: list[Any] = []
    for message in messages:
        if reason := _problem_of(message) or _problem_of_answer(message, call_ids):
            return reason
        call_ids += [call.get("id") for call in message.get("tool_calls") or ()]
    return None if any(message["role"] == "assistant" for message in messages) else "no assistant turn"


def _problem_of(message: Message) -> str | None:
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    reasoning = [message[name] for name in REASONING_NAMES if message.get(name) is not None]
    if role not in ROLES:
        return "unknown role"
    if calls and role != "assistant":
        return "tool calls outside an assistant turn"
    if not isinstance(content, str) and not (content is None and calls):
        return "content is not a string"
    if not all(isinstance(text, str) for text in reasoning):
        return "reasoning is not a string"
    if calls and not (isinstance(calls, list) and all(map(_is_tool_call, calls))):
        return "malformed tool call"
    if role == "assistant" and not calls and not "".join([content or "", *reasoning]).strip():
        return "empty assistant turn"
    return None


def _is_tool_call(call: Any) -> bool:
    function = _parsed_call(call).get("function") if isinstance(call, dict) else None
    wanted = {"name": str, "arguments": dict}
    return isinstance(function, dict) and all(isinstance(function.get(key), kind) for key, kind in wanted.items())


def _problem_of_answer(message: Message, call_ids: list[Any]) -> str | None:
    """A tool's message must say which call it answers, as far as the calls have ids."""
    if message["role"] != "tool":
        return None
    if not call_ids:
        return "tool message without a tool call"
    if None not in call_ids and message.get("tool_call_id") is None:
        return "tool message without tool_call_id"
    if None not in call_ids and message["tool_call_id"] not in call_ids:
        return "tool_call_id of no tool call"
    return None
