"""Incremental decoding of answers: whole characters, cut before a stop string, split into reasoning, content and calls.

    stream = Text(tokenizer, stop=["###"], in_thought=prompt.in_thought, tools=False)
    for token in answer:
        for piece in stream.feed(token.id):     # Piece("reasoning", "12 9"), Piece("content", "9")
            ...
        if stream.stopped:
            answer.cancel()
    stream.end()

Tool calls are parsed completely or not at all, so that no tool is called with partial arguments:

    {"name": "add", "arguments": {"a": 1}}                              Hermes, Qwen, our tiny template
    [{"name": "add", "parameters": {"a": 1}}, ...]                      Llama 3's name for them, several at once
    <function=add><parameter=a>1</parameter></function>                 Qwen Coder, Nemotron 3

In XML every value is text, converted to the first alternative of the tool's schema that it fits.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from nemotron_data.chat.rows import arguments_of, parse_json, to_json
from nemotron_data.tokenizers.words import Words

XML_CALLS = re.compile(r"\s*(?:<function=[^>\n]+>(?:(?!<function=).)*</function>\s*)+", re.DOTALL)
XML_CALL = re.compile(r"<function=([^>\n]+)>((?:(?!<function=).)*)</function>", re.DOTALL)
XML_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)
OF_CALLS = {"name", "type", "id"}
WORDS = {"True": True, "False": False, "true": True, "false": False, "None": None, "null": None}
"""Literals in JSON, and in Python as printed by templates."""
TYPES: Mapping[str, Any] = {
    "object": dict, "array": list, "boolean": bool, "null": type(None), "integer": int, "number": (int, float),
}  # fmt: skip
DEEPEST = 16
"""Maximum depth of references in a schema, which may be circular."""


class Call(NamedTuple):
    """A tool call; `arguments` is JSON text."""

    name: str
    arguments: str

    def as_message(self, number: str) -> dict[str, Any]:
        """As an entry of OpenAI's `tool_calls`."""
        return {"id": number, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


def parse_calls(text: str, tools: Mapping[str, Mapping[str, Any]], closed: bool = True) -> list[Call]:
    """Parse the calls in a text; returns none if it is anything else, or if a part cannot be read.

    Args:
        tools: definition of each tool by name: {"name": ..., "parameters": its schema}.
        closed: the text is complete, not cut off.
    """
    if closed and text.count("</function>") < text.count("<function=") == 1:
        text += "</function>"  # nothing is lost without it
    try:
        if text.lstrip().startswith(("{", "[")):
            found = parse_json(text)
            calls = [_json_call(one) for one in (found if isinstance(found, list) else [found])]
        elif XML_CALLS.fullmatch(text):
            calls = [_xml_call(name.strip(), inner, tools) for name, inner in XML_CALL.findall(text)]
        else:
            return []
    except (ValueError, RecursionError):
        return []
    whole = [call for call in calls if call is not None]
    return whole if len(whole) == len(calls) else []


def _json_call(found: Any) -> Call | None:
    if isinstance(found, dict) and isinstance(found.get("function"), dict):
        found = found["function"]  # wrapped as in requests
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    given = next((name for name in ("arguments", "parameters") if name in found), None)
    if given is None and not found.keys() <= OF_CALLS:
        return None  # they may be under another name
    arguments = arguments_of(found.get(given) if given else None)
    return None if arguments is None else Call(found["name"], to_json(dict(arguments)))


def _xml_call(name: str, inner: str, tools: Mapping[str, Mapping[str, Any]]) -> Call | None:
    found = XML_PARAMETER.findall(inner)
    if XML_PARAMETER.sub("", inner).strip() or len({key for key, _ in found}) < len(found):
        return None  # a parameter that is not closed, or is there twice
    schema = (tools.get(name) or {}).get("parameters")
    root = schema if isinstance(schema, dict) else {}
    about = _properties(root, root)
    return Call(name, to_json({key.strip(): typed(value, about.get(key.strip()), root) for key, value in found}))


def _properties(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a tool, from all parts of its schema."""
    found: dict[str, Any] = {}
    for part in _alternatives(schema, root):
        properties = part.get("properties")
        found |= {} if not isinstance(properties, dict) else properties
    return found


def typed(value: str, schema: Any, root: Mapping[str, Any]) -> Any:
    """Convert text to the first alternative of its schema that it fits; strings, and text that fits none, stay as is.

    Args:
        root: the schema in which references are looked up.
    """
    alternatives = list(_alternatives(schema, root))
    if value in ("null", "None") and any("null" in _types(one) for one in alternatives):
        return None
    for one in alternatives:
        choices = [one["const"]] if "const" in one else one.get("enum")
        if isinstance(choices, list):
            meant = [choice for choice in choices if value in (choice, to_json(choice), str(choice))]
            if meant:
                return meant[0]
            continue
        for kind in _types(one):
            if kind == "string":
                return value
            fits, read = _read(value, kind)
            if fits:
                return read
    return value


def _read(value: str, kind: str) -> tuple[bool, Any]:
    """Whether a text is a value of a JSON type, and the value."""
    try:
        read = WORDS[value.strip()] if value.strip() in WORDS else parse_json(value)
    except (ValueError, RecursionError):
        return False, None
    if kind in ("integer", "number"):
        # a number that keeps its spelling is not an int or float
        is_number = not isinstance(read, bool | dict | list | str) and read is not None
        return is_number and (kind == "number" or isinstance(read, int) or float(read).is_integer()), read
    return kind in TYPES and isinstance(read, TYPES[kind]), read


def _types(schema: Mapping[str, Any]) -> list[str]:
    """Types of one alternative, in order; without a type they are derived from other keywords."""
    named = schema.get("type")
    if named is None:
        shown = {"properties": "object", "additionalProperties": "object", "items": "array", "prefixItems": "array"}
        named = [kind for key, kind in shown.items() if key in schema][:1]
    types = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    types = [one for one in types if isinstance(one, str)]
    return [*types, "null"] if schema.get("nullable") is True else types


def _alternatives(schema: Any, root: Mapping[str, Any], depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Yield the schema, and those that it refers to or is composed of, in order."""
    if not isinstance(schema, dict) or depth > DEEPEST:
        return
    yield schema
    if isinstance(schema.get("$ref"), str):
        yield from _alternatives(_referred(schema["$ref"], root), root, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(key)
        for part in parts if isinstance(parts, list) else ():
            yield from _alternatives(part, root, depth + 1)


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    """Resolve a reference within the schema, such as "#/$defs/Place"; None for any other."""
    found: Any = root if reference.startswith("#") else None
    for name in reference.removeprefix("#").split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return found


class Piece(NamedTuple):
    """A part of an answer that cannot change any more."""

    kind: Literal["reasoning", "content", "call"]
    text: str
    call: Call | None = None


class Text:
    """Decoder for an answer. Without `markup` everything is content, as for plain completions.

    Args:
        begin: text in front of the first token.

    Attributes:
        stopped: a stop string was found.
        length: characters so far, including markup.
    """

    def __init__(
        self,
        tokenizer: Any,
        stop: Sequence[str] = (),
        *,
        markup: bool = True,
        in_thought: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
        begin: str = "",
    ) -> None:
        self.stopped, self.length = False, 0
        self._words, self._stop, self._held = Words(tokenizer), list(stop), begin
        self._parts = Parts(in_thought, tools) if markup else None

    def feed(self, token: int) -> list[Piece]:
        """Add a token; returns the pieces that are now certain."""
        return self._certain(self._words.feed(token), at_end=False)

    def end(self) -> list[Piece]:
        """Return the remaining pieces."""
        return self._certain(self._words.end(), at_end=True)

    def _certain(self, text: str, *, at_end: bool) -> list[Piece]:
        if not self.stopped:
            text, self._held = self._held + text, ""
            found = min((text.find(stop) for stop in self._stop if stop in text), default=-1)
            if found >= 0:
                self.stopped, text = True, text[:found]
            elif not at_end:
                cut = len(text) - max((_overlap(text, stop) for stop in self._stop), default=0)
                text, self._held = text[:cut], text[cut:]
        else:
            text = ""
        self.length += len(text)
        if self._parts is None:
            return [Piece("content", text)] if text else []
        return self._parts.feed(text, at_end=at_end)


def _overlap(text: str, tag: str) -> int:
    """Number of characters at the end of `text` that may be the beginning of `tag`."""
    return next((size for size in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:size])), 0)


class Parts:
    """Separate reasoning (`<think>`), content and tool calls (`<tool_call>`, in JSON or XML)."""

    def __init__(self, in_thought: bool, tools: Sequence[Mapping[str, Any]]) -> None:
        self._where: Literal["reasoning", "content", "call"] = "reasoning" if in_thought else "content"
        self._tools = {tool["function"]["name"]: tool["function"] for tool in tools}
        self._held, self._begun, self._fresh = "", False, True

    def feed(self, text: str, *, at_end: bool = False) -> list[Piece]:
        """Add text; returns the pieces that are certain."""
        text, self._held = self._held + text, ""
        pieces: list[Piece] = []
        while True:
            tags = self._tags()
            place, tag = min(((text.find(tag), tag) for tag in tags if tag in text), default=(-1, ""))
            if place < 0:
                break
            self._tell(pieces, text[:place], whole=True)
            text = text[place + len(tag) :]
            self._enter(tag)
        cut = len(text) if at_end else len(text) - max((_overlap(text, tag) for tag in tags), default=0)
        if self._where == "call" and not at_end:
            cut = 0
        self._tell(pieces, text[:cut], whole=False, at_end=at_end)
        self._held = text[cut:]
        return pieces

    def _tags(self) -> list[str]:
        if self._where == "reasoning":
            return ["</think>"]
        if self._where == "call":
            return ["</tool_call>"]
        return [*(() if self._begun else ("<think>",)), *(("<tool_call>",) if self._tools else ())]

    def _enter(self, tag: str) -> None:
        entered: dict[str, Literal["reasoning", "content", "call"]] = {"<think>": "reasoning", "<tool_call>": "call"}
        self._where, self._fresh = entered.get(tag, "content"), True

    def _tell(self, pieces: list[Piece], text: str, *, whole: bool, at_end: bool = False) -> None:
        """Args: whole: the part ends here; at_end: the answer does."""
        if self._where == "call":
            # also a call that is cut off just before its closing tag, if nothing else is missing
            calls = parse_calls(text, self._tools, closed=whole)
            if calls:
                pieces += [Piece("call", text if number == 0 else "", call) for number, call in enumerate(calls)]
            elif text or whole or at_end:  # not a valid call: show the text rather than lose it
                pieces.append(Piece("content", f"<tool_call>{text}" + ("</tool_call>" if whole else "")))
            return
        if self._fresh:
            text = text.lstrip("\n")
        if text:
            self._fresh = False
            self._begun = self._begun or (self._where == "content" and bool(text.strip()))
            pieces.append(Piece(self._where, text))
