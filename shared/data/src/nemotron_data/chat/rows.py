r"""Convert rows to messages, for each format in `formats.py`, and check that they can be trained on.

{"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}], "used_in": ["nano_v3"]}
[{"role": "user", "content": "2+2?"}]  ->  "no assistant turn"

Arguments of tool calls work both as an object and as JSON text, because some templates expect an object, others print
text, and rows contain either. Numbers keep their spelling in both: 1.50 never becomes 1.5.

    {{ call.function.arguments | tojson }}                     Qwen, Hermes
    {% for name, value in call.function.arguments | items %}   Nemotron 3, GLM
    {{ '```json\n' + call.function.arguments + '\n```' }}      DeepSeek V3 and R1
"""

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from nemotron_data.chat import loss_marks
from nemotron_data.chat.loss_marks import counts, problem_of_marks, refuse_marks_of_part
from nemotron_data.formats.json_lines import WrittenNumber, WrittenObject, is_missing, is_number, spoken, text_of
from nemotron_data.sources.json_rows import unique_keys
from nemotron_shared.system.errors import UserError, did_you_mean

MARK = secrets.token_hex(8)
NUMBER = re.compile(f'"{MARK}([-+.eE0-9]+)"')
"""A number as JSON spells it; ordinary text cannot contain the mark."""


class Arguments(dict[str, Any]):
    """Object that turns into its JSON text wherever text is expected.

    Attributes:
        given: the text it was parsed from; None if it was given as an object.
    """

    __slots__ = ("given",)

    def __init__(self, values: dict[str, Any], given: str | None = None) -> None:
        super().__init__(values)
        self.given = given

    @property
    def text(self) -> str:
        """The JSON text."""
        return to_json(dict(self), default=str) if self.given is None else self.given

    def __str__(self) -> str:
        return self.text

    def __add__(self, other: str) -> str:
        return self.text + other

    def __radd__(self, other: str) -> str:
        return other + self.text

    def __reduce__(self) -> tuple[type["Arguments"], tuple[dict[str, Any], str | None]]:
        return Arguments, (dict(self), self.given)


JOINT = "\n"


class Parts(str):
    """Content that was given in several text parts, joined by newlines, as vLLM and llama.cpp do.

    A chat template that shows parts itself gets them joined as it would show them (`ChatTemplate.joint`).
    """

    __slots__ = ("parts",)
    parts: tuple[str, ...]

    def __new__(cls, parts: Sequence[str]) -> "Parts":
        """Join them."""
        made = super().__new__(cls, JOINT.join(parts))
        made.parts = tuple(parts)
        return made

    def __reduce__(self) -> tuple[type["Parts"], tuple[tuple[str, ...]]]:
        return Parts, (self.parts,)


def arguments_of(given: Any) -> Arguments | None:
    """Arguments from an object, JSON text, or nothing (no arguments); None for anything else."""
    if given is None or isinstance(given, Arguments):
        return Arguments({}) if given is None else given
    given = given.written if isinstance(given, WrittenObject) else given
    if isinstance(given, str):
        try:
            values = parse_json(given) if given.strip() else {}
        except (ValueError, RecursionError):
            return None
        values = {} if values is None else values
        return Arguments(values, given) if isinstance(values, dict) else None
    return Arguments(given) if isinstance(given, dict) and not _holds_bytes(given) else None


def _holds_bytes(value: Any) -> bool:
    """Whether a value of a table has bytes in it, for which JSON has no form."""
    if isinstance(value, dict | list):
        return any(map(_holds_bytes, value.values() if isinstance(value, dict) else value))
    return isinstance(value, bytes)


def parse_json(text: str) -> Any:
    """Parse strict JSON; numbers keep their spelling.

    Raises:
        ValueError: invalid, NaN and infinity included, which no other program reads; or a key twice in an object.
    """
    return json.loads(text, parse_float=_number, parse_constant=_no_number, object_pairs_hook=unique_keys)


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


def _number(text: str) -> float | WrittenNumber:
    number = float(text)
    try:
        return number if repr(number) == text else WrittenNumber(text)
    except InvalidOperation as error:
        raise ValueError(f"{text[:40]} has an exponent beyond those of Decimal") from error


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
    *,
    default: Callable[[Any], Any] | None = None,
    allow_nan: bool = True,
) -> str:
    """Dump JSON with numbers as originally written, decimals of tables included; parameters are in the order in which
    templates pass them."""
    numbers = False

    def written(other: Any) -> Any:
        nonlocal numbers
        if isinstance(other, Decimal) and other.is_finite():
            numbers = True
            return f"{MARK}{other:f}"
        if default is not None:
            return default(other)
        raise TypeError(f"Object of type {type(other).__name__} is not JSON serializable")

    options: dict[str, Any] = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    options["allow_nan"] = allow_nan
    made = json.dumps(value, ensure_ascii=ensure_ascii, default=written, **options)
    return NUMBER.sub(r"\1", made) if numbers else made


Message = dict[str, Any]

ROLES = ("system", "user", "assistant", "tool")
OTHER_ROLES = {"developer": "system", "function": "tool"}
"""OpenAI's newer name for the system role, and its older one for the tool role."""
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "observation": "tool"}
SYSTEM_FIELDS = ("system", "system_prompt")
TOOL_FIELDS = ("tools", "functions", "tool_defs", "available_tools")
"""Field names for tool descriptions: OpenAI's current and former ones, verifiers', and others."""
PAIR = ("user", "assistant")
REQUEST = "responses_create_params"
"""Field of a request to the Responses API in NeMo-Gym's rows."""
OF_ITEMS = {"type", "id", "status"}
"""Fields of items that are not fields of messages."""
PART = {"type", "text"}
TEXT_PARTS = ("text", "input_text", "output_text")
REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")
QUOTED_END = re.compile(r"([`'\"])</think>\1")
THOUGHT_FIRST = re.compile(r"\s*<think>(.*?)</think>", re.DOTALL)
TOOL_RESPONSE = re.compile(r"\s*<tool_response>\n?((?:(?!</?tool_response>).)*?)\n?</tool_response>\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ChatFields:
    """Names of the fields that hold a row's conversation."""

    messages_field: str = "messages"
    prompt_field: str = "prompt"
    response_field: str = "response"
    conversations_field: str = "conversations"


def from_messages(row: dict[str, Any], field: str) -> list[Message]:
    """OpenAI-style messages, normalized for templates; see `plain_message`.

    Raises:
        UserError: a field is missing (also in the other functions), or a content part is not text.
    """
    return _after_system(row, _each(listed(row[_named(row, field)]), plain_message))


def from_pair(row: dict[str, Any], asked: str, answered: str, more: str | None = None) -> list[Message]:
    """A question and its answer (text, number or list of messages), after the row's system prompt and history.

    Args:
        asked: field of the question.
        answered: field of the answer.
        more: field with text that goes below the question, as in Alpaca.
    """
    asked, answered = _named(row, asked), _named(row, answered)
    prompt, response, below = (None if name is None else _number_as_text(row, name) for name in (asked, answered, more))
    for kind, name, value in (("question", asked, prompt), ("answer", answered, response)):
        if is_missing(row[name]):
            raise UserError(f"no {kind}: '{name}' is {row[name]}")
        if not isinstance(value, str | list | None):
            raise UserError(f"field '{name}' is not text: {type(value).__name__}")
    if response is None or response == "":
        raise UserError(f"no answer: '{answered}' is {'null' if response is None else 'empty'}")
    if isinstance(prompt, str) and isinstance(below, str) and below.strip():
        prompt = f"{prompt}\n\n{below}" if prompt.strip() else below
    if isinstance(prompt, str) and not prompt.strip():
        raise UserError(f"no question: '{asked}' is empty")
    said = [*_turns("user", prompt), *_turns("assistant", response)]
    names = {name.lower(): name for name in row}
    history = row[names["history"]] if "history" in names else None
    if history and not (
        isinstance(history, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in history)
    ):
        raise UserError("history is not a list of pairs")
    before = [
        turn for pair in history or () for role, text in zip(PAIR, pair, strict=True) for turn in _turns(role, text)
    ]
    return _after_system(row, [*before, *said])


def _number_as_text(row: dict[str, Any], name: str) -> Any:
    """Value of a field; numbers become text, spelled as in the file."""
    value = spoken(row[name])
    return text_of(value) if is_number(value) and not is_missing(value) else value


def from_sharegpt(row: dict[str, Any], field: str) -> list[Message]:
    """Turns with `from` and `value`, including function calls and their results."""
    return _after_system(row, _each(listed(row[_named(row, field)]), _from_turn))


def _from_turn(turn: dict[str, Any]) -> Message:
    said, value = turn.get("from"), turn.get("value")
    beside = {name: other for name, other in turn.items() if name not in ("from", "value")}
    if said == "function_call":
        return {**beside, "role": "assistant", "content": None, "tool_calls": _calls_in(value)}
    if beside.get("content", value) not in (None, value):
        raise UserError("two different texts in one turn: in 'value' and in 'content'")
    # leave anything else, such as a list, to `validate_messages`
    role = SHAREGPT_ROLES.get(said.lower(), said) if isinstance(said, str) else said
    return plain_message({**beside, "role": role, "content": value})


def _calls_in(text: Any) -> list[dict[str, Any]]:
    """Calls in a `function_call` turn's value: an object with a name and arguments, or a list of them."""
    try:
        found = parse_json(text) if isinstance(text, str) else text
    except (ValueError, RecursionError) as error:
        raise UserError(f"{MALFORMED}: {error}") from error
    calls = found if isinstance(found, list) else [found]
    return [parsed_call({"type": "function", "function": call}) for call in calls]


def from_rollout(row: dict[str, Any], asked: str, answered: str) -> list[Message]:
    """An episode as NeMo-Gym collects it: the request, and the items that model and environment added."""
    request, response = row[_named(row, asked)], row[_named(row, answered)]
    if not isinstance(request, dict) or not isinstance(response, dict):
        raise UserError(f"'{asked}' and '{answered}' are not objects")
    said = request.get("input")
    items = [{"role": "user", "content": said}] if isinstance(said, str) else said
    added = response.get("output")
    if not isinstance(items, list) or not isinstance(added, list):
        raise UserError(f"no list of items: '{asked}.input' or '{answered}.output'")
    if not all(isinstance(item, dict) for item in (*items, *added)):
        raise UserError("an item that is not an object")
    turns = _each(turns_of([*items, *added]), plain_message)
    instructions = request.get("instructions")
    return _after_system({"system": instructions} if instructions else {}, turns)


def turns_of(items: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Items of the Responses API as messages, not yet normalized; reasoning joins the answer that it leads to.

    Raises:
        UserError: an item that no chat template can show.
    """
    turns: list[Message] = []
    thought = ""
    for item in items:
        kind = item.get("type") or "message"
        if kind == "reasoning":
            parts = [*(item.get("summary") or ()), *(item.get("content") or ())]
            thought += "".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))
            continue
        turn = _turn(item, kind)
        if thought and turn["role"] == "assistant":
            turn, thought = {**turn, "reasoning_content": thought}, ""
        if kind == "function_call" and turns and turns[-1]["role"] == "assistant":
            last = turns[-1]
            turns[-1] = {**last, "tool_calls": [*last.get("tool_calls", ()), *turn["tool_calls"]]}
            continue
        turns.append(turn)
    names = {call["id"]: call["function"]["name"] for turn in turns for call in turn.get("tool_calls", ())}
    return [{**turn, "name": names[turn["tool_call_id"]]} if turn.get("tool_call_id") in names else turn
            for turn in turns]  # fmt: skip


def _turn(item: Mapping[str, Any], kind: str) -> Message:
    if kind == "message":
        return {name: value for name, value in item.items() if name not in OF_ITEMS}
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
    raise UserError(f"a '{kind}', which a chat template cannot show")


def _turns(role: str, said: Any) -> list[Any]:
    """Messages of one side: its text as one message, or a list of messages unchanged."""
    if isinstance(said, list):
        return _each(said, plain_message)
    return [{"role": role, "content": said}]


def _after_system(row: dict[str, Any], turns: Any) -> Any:
    """The turns, after the row's system prompt, if it has one.

    Raises:
        UserError: the system prompt is not text, or the turns contain another one.
    """
    names = {name.lower(): name for name in row}
    said = {f"'{names[name]}'": _system_text(row, names[name]) for name in SYSTEM_FIELDS if name in names}
    said = {where: text for where, text in said.items() if text}
    if not said or not isinstance(turns, list):
        return turns
    if turns and isinstance(turns[0], dict) and turns[0].get("role") == "system":
        said["a system turn at the beginning"] = turns[0].get("content")
        turns = turns[1:]
    text, *others = said.values()
    if any(other != text for other in others):
        raise UserError(f"two system prompts: {' and '.join(said)}")
    return [{"role": "system", "content": text}, *turns]


def _system_text(row: dict[str, Any], name: str) -> str | None:
    """Text of the system prompt, or None."""
    text = row[name] if row[name] is None else plain_message({"content": row[name]})["content"]
    if text is not None and not isinstance(text, str):
        raise UserError(f"the system prompt is not a text: '{name}' is a {type(text).__name__}")
    return text if text and text.strip() else None


def tools_of(row: Mapping[str, Any], field: str = TOOL_FIELDS[0]) -> list[dict[str, Any]] | None:
    """Tool descriptions of a row, from the field of that name or one of its common names, parsed if they are JSON text.

    Returns:
        The tools, or None without any.

    Raises:
        UserError: several fields differ, or they are not a list of objects.
    """
    if isinstance(request := row.get(REQUEST), Mapping) and field not in row:
        row = request
    names = {name.lower(): name for name in row}
    fields = [names[one] for one in dict.fromkeys([field.lower(), *TOOL_FIELDS]) if one in names]
    found = {name: listed(row[name]) for name in fields if row[name]}
    found = {name: tools for name, tools in found.items() if tools}
    if not found:
        return None
    first, *others = found
    if any(found[other] != found[first] for other in others):
        raise UserError(f"descriptions of tools twice: in {' and '.join(map(repr, found))}", "keep one of them")
    tools = found[first]
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise UserError(f"{first} is not a list of objects")
    return [described(tool) for tool in tools]


def described(tool: dict[str, Any]) -> dict[str, Any]:
    """Tool description as templates expect it: wrap a bare function in {"type": "function", "function": ...}."""
    if "function" in tool or not isinstance(tool.get("name"), str):
        return tool
    bare = {name: value for name, value in tool.items() if (name, value) != ("type", "function")}
    return {"type": "function", "function": bare}


def is_used_in(row: dict[str, Any], field: str, wanted: str) -> bool:
    """Whether a row's list of uses, or its comma-separated text, contains `wanted`; False without such a field."""
    uses = row.get(field)
    if isinstance(uses, str):
        uses = [use.strip() for use in uses.split(",")]
    return isinstance(uses, list) and wanted in uses


def _named(row: dict[str, Any], name: str) -> str:
    """Name of the field in this row, ignoring case."""
    if name in row:
        return name
    alike = [field for field in row if field.lower() == name.lower()]
    if len(alike) != 1:
        raise UserError(f"no field '{name}' in this row", did_you_mean(name, row, f"it has {', '.join(row)}"))
    return alike[0]


def listed(value: Any) -> Any:
    """Parse JSON text in table cells to a list; return anything else unchanged."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _each(value: Any, convert: Callable[[Message], Message]) -> Any:
    """Convert objects; leave anything else for `validate_messages` to report."""
    if not isinstance(value, list):
        return value
    return [convert(item) if isinstance(item, dict) else item for item in value]


def plain_message(message: Message) -> Message:
    """Normalize a message for templates: one of our roles, content as text, and calls with `Arguments`.

    Raises:
        UserError: a content part is not text, or a call cannot be read.
    """
    role = message.get("role")
    if isinstance(role, str) and role not in ROLES:
        usual = OTHER_ROLES.get(role.lower(), role.lower())
        message = {**message, "role": usual if usual in ROLES else role}
    if (call := message.get("function_call")) and not message.get("tool_calls"):
        others = {name: value for name, value in message.items() if name != "function_call"}
        message = {**others, "content": message.get("content"), "tool_calls": _calls_in(call)}
    if calls := message.get("tool_calls"):
        message = {**message, "tool_calls": _each(listed(calls), parsed_call)}
    if not isinstance(said := message.get("content"), str | None):
        message = {**message, "content": spoken(said)}
        message = _with_text(message) if isinstance(said, list) and not isinstance(message["content"], str) else message
    if message.get("role") == "assistant":
        message = _with_begun_thought(message)
    if message.get("role") == "tool" and isinstance(message.get("content"), str):
        # the role already says so, and templates add these tags themselves
        inner = TOOL_RESPONSE.fullmatch(str(message["content"]))
        message = {**message, "content": inner[1]} if inner else message
    return message


def _with_begun_thought(message: Message) -> Message:
    """Move reasoning that ends but does not begin into the reasoning field.

    Models write such text after a prompt that opens the thought. Trained as it stands, it would follow another
    beginning than the one the model is prompted with. An answer that quotes the mark, as documentation does, speaks
    about thoughts and is not one.
    """
    said = message.get("content")
    begun = any(message.get(name) for name in REASONING_NAMES)
    if (
        begun
        or not isinstance(said, str)
        or said.count("</think>") != 1
        or "<think>" in said
        or QUOTED_END.search(said)
    ):
        return message
    thought, _, answer = said.partition("</think>")
    return {**message, "reasoning_content": thought.strip("\n"), "content": answer.lstrip("\n")}


def _with_text(message: Message) -> Message:
    """Join text parts of the content, and move thinking parts to the answer's reasoning."""
    texts, thoughts = [], []
    for part in message["content"]:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind in TEXT_PARTS and isinstance(text := spoken(part.get("text")), str):
            texts.append(text)
            if part.keys() > PART and message.get("role") == "assistant":
                refuse_marks_of_part(part)
        elif kind in ("thinking", "reasoning") and isinstance(part.get(kind), str):
            thoughts.append(part[kind])
        else:
            image = "image" in str(kind)
            raise UserError(f"{'an image' if image else 'a part that is not text'} in the content: of type '{kind}'")
    thought = "".join(thoughts)
    beside = next((message[name] for name in REASONING_NAMES if message.get(name)), thought)
    if thoughts and beside != thought:
        raise UserError("two different reasonings in one turn: in a part of the content and in a field")
    reasoning = {"reasoning_content": thought} if thoughts else {}
    return {**message, **reasoning, "content": Parts(texts) if len(texts) > 1 else "".join(texts)}


def parsed_call(call: dict[str, Any]) -> dict[str, Any]:
    """A tool call in OpenAI's form, with its `Arguments`; unchanged if those cannot be read."""
    if "function" not in call and isinstance(call.get("name"), str):  # bare function
        function = {name: call[name] for name in ("name", "arguments", "parameters") if name in call}
        beside = {name: value for name, value in call.items() if name not in function}
        call = {"type": "function", **beside, "function": function}
    function = call.get("function")
    if not isinstance(function, dict):
        return call
    # Llama 3 and others call them `parameters`
    given = next((function[name] for name in ("arguments", "parameters") if function.get(name) is not None), None)
    arguments = arguments_of(given)
    if arguments is None:
        return call
    named = {name: value for name, value in function.items() if name not in ("arguments", "parameters")}
    return {**call, "function": {**named, "arguments": arguments}}


ORDINARY = {"role", "content"}
CALL_MARKS = ("<tool_call>", "[TOOL_CALLS]", "<function_call>", "<functioncall>", "<function=")
"""Marks of tool calls written as text: Hermes, Mistral, Glaive, Llama 3."""


MALFORMED = "malformed tool call"
NO_CALL = "tool message without a tool call"
REMEDIES = {
    NO_CALL: "write the calls before it as the answer's tool_calls, or in its text between <tool_call> and"
    " </tool_call>, or the tool's turns as the user's",
    **loss_marks.REMEDIES,
}
"""Remedies for reasons that affect a whole data set, where leaving out such rows would leave out most or all of it; by
the beginning of the reason."""


def remedy_of(reason: str) -> str | None:
    """Remedy for a reason; None if the row can only be left out."""
    return REMEDIES.get(reason.partition(": ")[0])


def validate_messages(messages: Any) -> str | None:
    """Return why a conversation cannot be trained on, as one of a few fixed phrases to count by, or None if it can."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return "messages is not a list of objects"
    if not messages:
        return "no messages"
    call_ids: list[Any] = []
    for number, message in enumerate(messages):
        if message.keys() == ORDINARY and type(message["content"]) is str and message["role"] in ("user", "system"):
            continue
        if reason := problem_of(message) or _no_lesson(message) or problem_of_result(message, call_ids):
            return reason.replace(f"{MALFORMED}: ", f"{MALFORMED}: messages[{number}].")
        call_ids += ids_of_calls(message)
    answers = [message for message in messages if message["role"] == "assistant"]
    if not answers:
        return "no assistant turn"
    return None if any(map(counts, answers)) else "no assistant turn that counts in the loss"


def problem_of(message: Message) -> str | None:
    """Why no template should get this message, in training or as a prompt."""
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    reasoning = [message[name] for name in REASONING_NAMES if message.get(name) is not None]
    if role not in ROLES:
        return f"unknown role: {repr(role)[:80]}; known are {', '.join(ROLES)}"
    if calls and role != "assistant":
        return "tool calls outside an assistant turn"
    if not isinstance(content, str) and not (content is None and calls):
        return "content is not a string"
    if not all(isinstance(text, str) for text in reasoning):
        return "reasoning is not a string"
    if len({text for text in reasoning if text.strip()}) > 1:
        said = " and ".join(f"'{name}'" for name in REASONING_NAMES if message.get(name))
        return f"two different reasonings in one turn: {said}"
    if calls and not isinstance(calls, list):
        return f"{MALFORMED}: tool_calls is not a list"
    return next((f"{MALFORMED}: tool_calls{wrong}" for wrong in _wrong_in(calls or ())), None)


def calls_in_text(message: Message) -> bool:
    """Whether an answer calls a tool in its text, without a field for the call."""
    said = message.get("content")
    return (
        message.get("role") == "assistant"
        and not message.get("tool_calls")
        and isinstance(said, str)
        and any(mark in said for mark in CALL_MARKS)
    )


def _no_lesson(message: Message) -> str | None:
    """Why a message cannot be trained on, or cannot be left out of the loss."""
    if reason := problem_of_marks(message):
        return reason
    role = message["role"]
    words = [message.get("content"), *(message.get(name) for name in REASONING_NAMES)]
    if role == "assistant" and not message.get("tool_calls") and not any(text and text.strip() for text in words):
        return "empty assistant turn"
    named = next((name for name in REASONING_NAMES if (message.get(name) or "").strip()), None)
    if (
        role == "assistant"
        and named
        and (begun := THOUGHT_FIRST.match(message.get("content") or ""))
        and begun[1].strip()
    ):
        return f"two reasonings in one turn: '{named}', and in <think> at the beginning of the content"
    return None


def _wrong_in(calls: Sequence[Any]) -> Iterator[str]:
    """What is wrong in calls, and where: "[0].function.name is not a text"."""
    for number, call in enumerate(calls):
        function = parsed_call(call).get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            yield f"[{number}] has no object in 'function'"
        elif not isinstance(function.get("name"), str):
            yield f"[{number}].function.name is not a text"
        elif not isinstance(function.get("arguments"), Arguments):
            yield f"[{number}].function.arguments is not an object, nor the JSON text of one"


def ids_of_calls(message: Message) -> list[Any]:
    """The ids of the calls in a message, None for each without one."""
    ids = [call.get("id") for call in message.get("tool_calls") or ()]
    return [*ids, None] if calls_in_text(message) else ids


def problem_of_result(message: Message, call_ids: Sequence[Any]) -> str | None:
    """A tool message must name the call it answers, if the calls before it have ids."""
    if message["role"] != "tool":
        return None
    if not call_ids:
        return NO_CALL
    if None not in call_ids and message.get("tool_call_id") is None:
        return "tool message without tool_call_id"
    if None not in call_ids and message["tool_call_id"] not in call_ids:
        return "tool_call_id of no tool call"
    return None
