"""Whether the tool calls of an answer are the expected ones, by meaning.

    tools = {"weather": {"name": "weather", "parameters": {"properties": {"days": {"default": 1}}}}}
    said = calls_of('<tool_call>{"name": "weather", "arguments": {"days": 1.0, "city": "Kelby"}}</tool_call>', tools)
    same_calls(said, [Call("weather", '{"city": "Kelby"}')], tools)      True

The same tools must be called equally often, in any order. Of arguments, order and spacing do not count, 1 equals 1.0,
and one that has its default, or is null without being required, may be left out. Texts must be equal, except for blanks
around them. `nemotron_data.chat.answers` reads the calls, as the server does: JSON and XML in <tool_call>. Templates of
Llama have JSON without such marks.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any

from nemotron_data.chat.answers import Call, Parts, parse_calls, typed
from nemotron_data.chat.rows import to_json

Tools = Mapping[str, Mapping[str, Any]]
"""Definition of each tool by name: {"name": ..., "parameters": its schema}."""
MARK = "<tool_call>"
UNREADABLE = Call(MARK, "{}")
"""Stands for calls next to others that cannot be read; no expected call equals it."""
EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""Rounds no number; the usual context rounds to 28 digits."""
OF_LLAMA = re.compile(r"^\s*<\|python_tag\|>|(?:<\|eom_id\|>|<\|eot_id\|>)\s*$")
"""Control tokens around a call in Llama's templates."""
ANY_TOOL = {"function": {"name": ""}}
"""Without a definition, no call would be looked for."""
XML_TOOL = re.compile(r"<function>\s*<name>([^<]+)</name>(.*?)</function>", re.DOTALL)
XML_PARAMETER = re.compile(r"<parameter>\s*<name>([^<]+)</name>(.*?)</parameter>", re.DOTALL)
XML_FIELD = re.compile(r"<(type|default)>(.*?)</\1>", re.DOTALL)
XML_REQUIRED = re.compile(r"<required>(\[[^<]*\])</required>")


def tools_by_name(tools: Iterable[Any] | None) -> Tools:
    """Definitions by name, of tools in OpenAI's form or of the Responses API."""
    found = [tool.get("function", tool) for tool in tools or () if isinstance(tool, Mapping)]
    return {str(one["name"]): one for one in found if isinstance(one, Mapping) and "name" in one}


def calls_of(answer: str, tools: Tools, *, bare: bool = False) -> list[Call]:
    """The calls in a whole answer, behind its thought; none if it calls nothing, or cannot be read.

    If only some of its calls can be read, `UNREADABLE` stands for the others.

    Args:
        bare: a call of a known tool may be JSON without <tool_call>, as of Llama.
    """
    known = [{"function": {**one, "name": name}} for name, one in tools.items()]
    pieces = Parts(False, known or [ANY_TOOL]).feed(answer, at_end=True)
    if found := [piece.call for piece in pieces if piece.call is not None]:
        whole = all(piece.kind != "content" or not piece.text.startswith(MARK) for piece in pieces)
        return found if whole else [*found, UNREADABLE]
    said = "".join(piece.text for piece in pieces if piece.kind == "content")
    found = parse_calls(OF_LLAMA.sub("", said).strip(), tools) if bare else []
    return found if all(call.name in tools for call in found) else []  # an answer in JSON may have a name, too


def calls_in(expected: str | None) -> list[Call] | None:
    """The calls that a row's expected answer states in JSON: one, or a list; None if it is another text."""
    text = (expected or "").strip()
    if text == "[]":
        return []
    return parse_calls(text, {}) or None


def same_calls(said: Sequence[Call], expected: Sequence[Call], tools: Tools) -> bool:
    """Whether the calls mean the same. Arguments that are nested too deeply to be compared equal none."""
    try:
        return sorted(_meaning(call, tools) for call in said) == sorted(_meaning(call, tools) for call in expected)
    except RecursionError:
        return False


def _meaning(call: Call, tools: Tools) -> str:
    """A text that calls of one meaning share."""
    schema = tools.get(call.name, {}).get("parameters")
    schema = schema if isinstance(schema, Mapping) else {}
    about = schema.get("properties")
    about, required = about if isinstance(about, Mapping) else {}, schema.get("required")
    required = required if isinstance(required, list) else []
    arguments = json.loads(call.arguments, parse_float=_Written, parse_int=_Written)
    return json.dumps([call.name, _canonical(_without_defaults(arguments, about, required))], sort_keys=True)


def _without_defaults(
    arguments: Mapping[str, Any], about: Mapping[str, Any], required: Sequence[Any]
) -> dict[str, Any]:
    found = {}
    for name, value in arguments.items():
        if value is None and name not in required:
            continue
        one = about.get(name)
        if isinstance(one, Mapping) and "default" in one and _canonical(one["default"]) == _canonical(value):
            continue
        found[name] = value
    return found


class _Written(str):
    """A number as it is written: as a float, 1e400 would be infinite."""

    __slots__ = ()


def _canonical(value: Any) -> Any:
    """Numbers by their value, texts without blanks around them; true differs from 1."""
    if isinstance(value, Mapping):
        return {str(key): _canonical(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_canonical(one) for one in value]
    if isinstance(value, str) and not isinstance(value, _Written):
        return f"text {value.strip()}"
    if value is None or isinstance(value, bool):
        return value
    with suppress(ArithmeticError):  # an exponent beyond those of Decimal
        number = Decimal(str(value))
        return f"number {number.normalize(EXACT) if number else 0}"
    return f"{type(value).__name__} {value}"


def tools_shown(prompt: str) -> Tools:
    """The tools whose definitions a rendered prompt shows, in JSON or in Nemotron 3's XML.

    Prepared rows hold tokens alone, so this is where the types and defaults of their tools are.
    """
    found: dict[str, Mapping[str, Any]] = {}
    decoder, place = json.JSONDecoder(), prompt.find("{")
    while place >= 0:
        try:
            one, end = decoder.raw_decode(prompt, place)
        except (ValueError, RecursionError):
            one, end = None, place + 1
        function = one.get("function", one) if isinstance(one, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("parameters"), Mapping) and "name" in function:
            found.setdefault(str(function["name"]), function)
        elif one is not None:
            end = place + 1  # a tool may be inside
        place = prompt.find("{", end)
    for name, inner in XML_TOOL.findall(prompt):
        found.setdefault(name.strip(), {"name": name.strip(), "parameters": _xml_schema(inner)})
    return found


def _xml_schema(inner: str) -> dict[str, Any]:
    properties = {}
    for name, about in XML_PARAMETER.findall(inner):
        one = dict(XML_FIELD.findall(about))
        if "default" in one:
            one["default"] = typed(one["default"], {"type": one.get("type", "string")}, {})
        properties[name.strip()] = one
    found, required = XML_REQUIRED.search(XML_PARAMETER.sub("", inner)), []
    with suppress(ValueError):
        required = json.loads(found[1]) if found else []
    return {"type": "object", "properties": properties, "required": required}


def as_text(calls: Sequence[Call]) -> str:
    """Calls as the expected answer of a row states them: `calls_in` reads it."""
    return to_json([{"name": call.name, "arguments": json.loads(call.arguments)} for call in calls])
