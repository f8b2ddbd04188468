"""Rows to messages, for each format of the table in `formats.py`; `sound.py` says which can be trained on.

{"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}], "used_in": ["nano_v3"]}
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nemotron_data.chat.arguments import arguments_of, parse_json
from nemotron_data.formats.written import is_missing, is_number, text_of
from nemotron_shared.errors import UserError, did_you_mean

Message = dict[str, Any]

ROLES = ("system", "user", "assistant", "tool")
OTHER_ROLES = {"developer": "system", "function": "tool"}
"""What OpenAI calls a system prompt today, and called a tool's answer once."""
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "observation": "tool"}
SYSTEM_FIELDS = ("system", "system_prompt")
TOOL_FIELDS = ("tools", "functions", "tool_defs", "available_tools")
"""What people call the descriptions of tools: OpenAI today and once, verifiers, and others."""
COUNTING = ("weight", "loss", "train")
"""By which a turn says whether it counts in the loss: 0 or false, 1 or true."""
PAIR = ("user", "assistant")
TEXT_PARTS = ("text", "input_text", "output_text")
REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")
TOOL_RESPONSE = re.compile(r"\s*<tool_response>\n?((?:(?!</?tool_response>).)*?)\n?</tool_response>\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ChatFields:
    """The names of the fields in which a row keeps its conversation."""

    messages_field: str = "messages"
    prompt_field: str = "prompt"
    response_field: str = "response"
    conversations_field: str = "conversations"


def from_messages(row: dict[str, Any], fields: ChatFields) -> list[Message]:
    """OpenAI-style messages as plain as templates expect them, see `plain_message`.

    Raises:
        UserError: a field is missing, as in the others; or a part of a content is no text.
    """
    return _after_system(row, _each(_listed(_field(row, fields.messages_field)), plain_message))


def from_prompt_response(row: dict[str, Any], fields: ChatFields) -> list[Message]:
    """One question and its answer, under the names that `fields` gives."""
    return from_pair(row, _named(row, fields.prompt_field), _named(row, fields.response_field))


def from_pair(row: dict[str, Any], asked: str, answered: str, more: str | None = None) -> list[Message]:
    """A question and its answer, each a text, a number or a list of messages, after its system prompt and history.

    Args:
        asked: field of the question; `more` of what belongs below it, as in Alpaca. answered: field of the answer.
    """
    prompt, response, below = (None if name is None else _number_as_text(row, name) for name in (asked, answered, more))
    for kind, name in (("question", asked), ("answer", answered)):
        if is_missing(row[name]):
            raise UserError(f"no {kind}: '{name}' is {row[name]}")
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
    """What a field holds; a number as text, as the file has it."""
    value = row[name]
    return text_of(value) if is_number(value) and not is_missing(value) else value


def from_sharegpt(row: dict[str, Any], fields: ChatFields) -> list[Message]:
    """Turns that say `from` and `value`, calls of functions and what they gave among them."""
    return _after_system(row, _each(_listed(_field(row, fields.conversations_field)), _from_turn))


def _from_turn(turn: dict[str, Any]) -> Message:
    said, value = turn.get("from"), turn.get("value")
    beside = {name: other for name, other in turn.items() if name not in ("from", "value")}
    if said == "function_call":
        return {**beside, "role": "assistant", "content": None, "tool_calls": _calls_in(value)}
    if beside.get("content", value) not in (None, value):
        raise UserError("two different texts in one turn: in 'value' and in 'content'")
    # a list, say, is no role; `validate_messages` tells of it
    role = SHAREGPT_ROLES.get(said.lower(), said) if isinstance(said, str) else said
    return plain_message({**beside, "role": role, "content": value})


def _calls_in(text: Any) -> list[dict[str, Any]]:
    """The calls in the value of a `function_call` turn: an object with a name and arguments, or a list of them."""
    try:
        found = parse_json(text) if isinstance(text, str) else text
    except (ValueError, RecursionError) as error:
        raise UserError(f"malformed tool call: {error}") from error
    calls = found if isinstance(found, list) else [found]
    return [parsed_call({"type": "function", "function": call}) for call in calls]


def _turns(role: str, said: Any) -> list[Any]:
    """What one side says: its text, or messages as they are."""
    if isinstance(said, list):
        return _each(said, plain_message)
    return [{"role": role, "content": said}]


def _after_system(row: dict[str, Any], turns: Any) -> Any:
    """The turns, after the row's own system prompt where it has one.

    Raises:
        UserError: that is no text, or there is another one.
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
    """The text of a system prompt; None where there is none."""
    text = row[name] if row[name] is None else plain_message({"content": row[name]})["content"]
    if text is not None and not isinstance(text, str):
        raise UserError(f"the system prompt is not a text: '{name}' is a {type(text).__name__}")
    return text if text and text.strip() else None


def tools_of(row: Mapping[str, Any], field: str = TOOL_FIELDS[0]) -> list[dict[str, Any]] | None:
    """A row's descriptions of tools, from the field of that name or another that people keep them in, also where they
    are JSON text; None where it has none.

    Raises:
        UserError: it has several that differ, or they are no list of objects.
    """
    names = {name.lower(): name for name in row}
    fields = [names[one] for one in dict.fromkeys([field.lower(), *TOOL_FIELDS]) if one in names]
    found = {name: _listed(row[name]) for name in fields if row[name]}
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
    """A tool as templates know them: a bare function in {"type": "function", "function": ...}, all else as it is."""
    if "function" in tool or not isinstance(tool.get("name"), str):
        return tool
    bare = {name: value for name, value in tool.items() if (name, value) != ("type", "function")}
    return {"type": "function", "function": bare}


def is_used_in(row: dict[str, Any], field: str, wanted: str) -> bool:
    """Whether a row's list of uses, or its comma-separated text, names `wanted`; a row without one does not."""
    uses = row.get(field)
    if isinstance(uses, str):
        uses = [use.strip() for use in uses.split(",")]
    return isinstance(uses, list) and wanted in uses


def _named(row: dict[str, Any], name: str) -> str:
    """The field of that name, in whatever case the row has it."""
    if name in row:
        return name
    alike = [field for field in row if field.lower() == name.lower()]
    if len(alike) != 1:
        raise UserError(f"no field '{name}' in this row", did_you_mean(name, row, f"it has {', '.join(row)}"))
    return alike[0]


def _field(row: dict[str, Any], name: str) -> Any:
    return row[_named(row, name)]


def _listed(value: Any) -> Any:
    """A list as it is, also where a table's cell holds it as JSON text."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _each(value: Any, convert: Callable[[Message], Message]) -> Any:
    """Convert what is an object; anything else stays for `validate_messages` to name."""
    if not isinstance(value, list):
        return value
    return [convert(item) if isinstance(item, dict) else item for item in value]


def plain_message(message: Message) -> Message:
    """A message as templates expect it, whoever sent it: of one of our roles, its content a text, and its calls with
    arguments that are object and text in one.

    Raises:
        UserError: a part of its content is no text, or its call cannot be read.
    """
    role = message.get("role")
    if isinstance(role, str) and role not in ROLES:
        usual = OTHER_ROLES.get(role.lower(), role.lower())
        message = {**message, "role": usual if usual in ROLES else role}
    if (call := message.get("function_call")) and not message.get("tool_calls"):
        others = {name: value for name, value in message.items() if name != "function_call"}
        message = {**others, "content": message.get("content"), "tool_calls": _calls_in(call)}
    if calls := message.get("tool_calls"):
        message = {**message, "tool_calls": _each(_listed(calls), parsed_call)}
    message = _with_text(message) if isinstance(message.get("content"), list) else message
    if message.get("role") == "assistant":
        message = _with_begun_thought(message)
    if message.get("role") == "tool" and isinstance(message.get("content"), str):
        # the role says it already, and templates put these marks around it themselves
        inner = TOOL_RESPONSE.fullmatch(message["content"])
        message = {**message, "content": inner[1]} if inner else message
    return message


def _with_begun_thought(message: Message) -> Message:
    """A thought that only ends, as a model writes it behind a prompt that begins it, becomes the answer's reasoning:
    learnt as it stands, it would follow on another beginning than the model is prompted with."""
    said = message.get("content")
    begun = any(message.get(name) for name in REASONING_NAMES)
    if begun or not isinstance(said, str) or said.count("</think>") != 1 or "<think>" in said:
        return message
    thought, _, answer = said.partition("</think>")
    return {**message, "reasoning_content": thought.strip("\n"), "content": answer.lstrip("\n")}


def _with_text(message: Message) -> Message:
    """The texts of a content's parts as one, and thoughts among them as the answer's reasoning."""
    texts, thoughts = [], []
    for part in message["content"]:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind in TEXT_PARTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind in ("thinking", "reasoning") and isinstance(part.get(kind), str):
            thoughts.append(part[kind])
        else:
            image = "image" in str(kind)
            raise UserError(f"{'an image' if image else 'a part that is no text'} in the content: of type '{kind}'")
    thought = "".join(thoughts)
    beside = next((message[name] for name in REASONING_NAMES if message.get(name)), thought)
    if thoughts and beside != thought:
        raise UserError("two different reasonings in one turn: in a part of the content and beside it")
    reasoning = {"reasoning_content": thought} if thoughts else {}
    return {**message, **reasoning, "content": "".join(texts)}


def parsed_call(call: dict[str, Any]) -> dict[str, Any]:
    """A call of a tool in OpenAI's form, with its `Arguments`; as it is where those cannot be read."""
    if "function" not in call and isinstance(call.get("name"), str):  # bare, as a function
        function = {name: call[name] for name in ("name", "arguments", "parameters") if name in call}
        beside = {name: value for name, value in call.items() if name not in function}
        call = {"type": "function", **beside, "function": function}
    function = call.get("function")
    if not isinstance(function, dict):
        return call
    # Llama 3 and others write `parameters` for them
    given = next((function[name] for name in ("arguments", "parameters") if function.get(name) is not None), None)
    arguments = arguments_of(given)
    if arguments is None:
        return call
    named = {name: value for name, value in function.items() if name not in ("arguments", "parameters")}
    return {**call, "function": {**named, "arguments": arguments}}


def counts(message: Message) -> bool:
    """Whether a turn counts in the loss, as far as it says so itself."""
    return all(message.get(name) in (None, 1) for name in COUNTING)
