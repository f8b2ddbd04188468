"""Chat formats: how a row holds its conversation, and how it becomes messages. One table, open for more.

    messages           {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}
    sharegpt           {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]}
    alpaca             {"instruction": "Add.", "input": "2+2", "output": "4"}
    prompt_response    {"prompt": "2+2?", "response": "4"}, and so on for the other pairs

    recognise({"Question": "2+2?", "Answer": "4"})      # Recognised("question_answer", ("Question", "Answer"))

Recognition looks at field names and the shape of turns. It never guesses: no match and several matches are errors.
A package adds a format without a change here: a function from a row to its messages, under an entry point whose name
is what `data_prep.format` says.

    [project.entry-points."nemotron.chat_formats"]
    lines = "my_formats:lines"
"""

import inspect
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from nemotron_data.chat.rows import (
    ChatFields,
    Message,
    from_messages,
    from_pair,
    from_prompt_response,
    from_sharegpt,
)
from nemotron_data.rejects import snippet_of
from nemotron_shared.artifacts import Source
from nemotron_shared.config.overrides import override
from nemotron_shared.config.registry import shown
from nemotron_shared.digest import file_digest, json_digest
from nemotron_shared.errors import UserError, did_you_mean

# format: names of the question, of the answer, and of an optional input that goes below the question
PAIRS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "alpaca": (("instruction",), ("output", "response"), ("input", "context")),
    "prompt_response": (("prompt",), ("response",), ()),
    "prompt_completion": (("prompt",), ("completion",), ()),
    "question_answer": (("question",), ("answer", "response"), ()),
    "input_output": (("input",), ("output",), ()),
}
TURN_FIELDS = ("messages", "conversations", "conversation")
TEXT_FIELDS = ("text", "content", "document")
UNKNOWN, SEVERAL, DOCUMENT = "no known chat format", "several chat formats fit", "a document, not a chat"
BY_FORMAT = "say which it is: data_prep.format=NAME"


@dataclass(frozen=True, slots=True)
class Recognised:
    """A format from the table, and the fields of this row that it uses."""

    format: str
    fields: tuple[str, ...]


def recognise(row: Mapping[str, Any], only: str | None = None) -> Recognised:
    """Detect the format of a row.

    Args:
        only: one of `PAIRS` that the row must match.

    Raises:
        UserError: no format fits, or more than one.
    """
    names = {name.lower().strip(): name for name in row}
    found = [] if only else _turns_in(row, names)
    for name in PAIRS if only is None else (only,):
        asked, answered, more = (next((names[one] for one in known if one in names), None) for known in PAIRS[name])
        if asked is not None and answered is not None:
            found.append(Recognised(name, (asked, answered, *([more] if more is not None else []))))
    if len(found) > 1 and any(one.format == "alpaca" for one in found):
        # its fields are those of input_output plus one
        found = [one for one in found if one.format != "input_output"]
    if len(found) == 1:
        return found[0]
    listed = f"it has the fields {snippet_of(', '.join(row)) or '(none)'}"
    if found:
        raise UserError(f"{SEVERAL}: {' and '.join(one.format for one in found)}; {listed}", _by_hand(row))
    if only:
        wanted = " and ".join(f"'{'/'.join(known)}'" for known in PAIRS[only][:2])
        raise UserError(f"not a row of the format {only}: no {wanted}; {listed}", "name another: data_prep.format=auto")
    if any(name in names for name in TEXT_FIELDS):
        raise UserError(f"{DOCUMENT}: {listed}", "documents are for pretraining: data prep pretrain")
    raise UserError(f"{UNKNOWN}: {listed}", _by_hand(row))


def _by_hand(row: Mapping[str, Any]) -> str:
    """How to name the fields by hand, quoted for a shell and for the command line."""
    texts = [name for name, value in row.items() if isinstance(value, str)]
    if len(texts) < 2:
        return f"{BY_FORMAT}, or the fields: data_prep.prompt_field=..., data_prep.response_field=..."
    words = (override(f"data_prep.{key}_field", name) for key, name in zip(("prompt", "response"), texts, strict=False))
    return f"{BY_FORMAT}, or which field is the question and which the answer: {' '.join(map(_typed, words))}"


def _typed(word: str) -> str:
    """Quote a word for a shell; in double quotes if it contains single ones."""
    return f'"{word}"' if "'" in word and not set('"$`\\!') & set(word) else shlex.quote(word)


def _turns_in(row: Mapping[str, Any], names: Mapping[str, str]) -> list[Recognised]:
    """Lists of turns: recognized by their first turn, or by name if empty."""
    found = []
    for name in TURN_FIELDS:
        if name not in names:
            continue
        turns = row[names[name]]
        if isinstance(turns, str) and turns.lstrip().startswith("["):
            try:
                turns = json.loads(turns)
            except (ValueError, RecursionError):
                turns = None
        first = turns[0] if isinstance(turns, list) and turns and isinstance(turns[0], dict) else {}
        sharegpt = "from" in first if first.keys() & {"from", "role"} else name != "messages"
        found.append(Recognised("sharegpt" if sharegpt else "messages", (names[name],)))
    return found


GROUP = "nemotron.chat_formats"


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """One way to hold a conversation.

    Attributes:
        to_messages: the row's conversation as OpenAI-style messages, not yet validated.
        reads: settings of `data_prep` that name the fields it reads.
        example: a row; None where a package did not give one.
    """

    to_messages: Callable[[dict[str, Any], ChatFields], list[Message]]
    reads: tuple[str, ...] = ()
    example: Mapping[str, Any] | None = None


def from_any(row: dict[str, Any], fields: ChatFields) -> list[Message]:
    """Each row by the format that its fields show.

    Raises:
        UserError: it has none, or several.
    """
    found = recognise(row)
    if found.format in PAIRS:
        return from_pair(row, *found.fields)
    if found.format == "messages":
        return from_messages(row, ChatFields(messages_field=found.fields[0]))
    return from_sharegpt(row, ChatFields(conversations_field=found.fields[0]))


def _from_own_pair(row: dict[str, Any], fields: ChatFields, name: str) -> list[Message]:
    return from_pair(row, *recognise(row, name).fields)


TURNS = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
AUTO = "auto"
CHAT_FORMATS = {
    AUTO: ChatFormat(from_any, (), {"messages": TURNS}),
    "messages": ChatFormat(from_messages, ("messages_field",), {"messages": TURNS}),
    "sharegpt": ChatFormat(
        from_sharegpt,
        ("conversations_field",),
        {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]},
    ),
    "prompt_response": ChatFormat(
        from_prompt_response, ("prompt_field", "response_field"), {"prompt": "2+2?", "response": "4"}
    ),
    "alpaca": ChatFormat(
        partial(_from_own_pair, name="alpaca"), (), {"instruction": "2+2?", "input": "", "output": "4"}
    ),
    **{
        name: ChatFormat(partial(_from_own_pair, name=name), (), dict(zip(name.split("_"), ("2+2?", "4"), strict=True)))
        for name in ("prompt_completion", "question_answer", "input_output")
    },
}
"""By the name that `data_prep.format` says. A new format is a new entry."""


def format_for(name: str, fields: ChatFields) -> str:
    """The format that settings mean: under `auto`, a field that is named decides."""
    usual = ChatFields()
    named = [key for key in ChatFields.__dataclass_fields__ if getattr(fields, key) != getattr(usual, key)]
    if name != AUTO:
        return name
    return next((form for form, known in CHAT_FORMATS.items() if set(named) & set(known.reads)), name)


def check_format(name: str) -> str:
    """The name as it is.

    Raises:
        UserError: no format has this name; lists those that there are, installed ones included.
    """
    if name not in CHAT_FORMATS:
        _entry_point(name)
    return name


def find_format(name: str) -> ChatFormat:
    """A format of the table, or one that an installed package offers.

    Raises:
        UserError: no format has this name, two packages offer it, or the package cannot be loaded.
    """
    if name in CHAT_FORMATS:
        return CHAT_FORMATS[name]
    entry = _entry_point(name)
    function = _loaded(entry)

    def to_messages(row: dict[str, Any], fields: ChatFields) -> list[Message]:
        """What other people's code raises on a row, or makes of it, is that row's fault, and is counted like any
        other."""
        try:
            made = function(row)
            listed = isinstance(made, list) and all(isinstance(message, dict) for message in made)
            if listed:  # NaN, and halves of characters, are no JSON
                json.dumps(made, ensure_ascii=False, allow_nan=False, default=str).encode()
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"the chat format '{name}' fails: {type(error).__name__}: {error}") from error
        if not listed:
            raise UserError(f"the chat format '{name}' gives {shown(made)}, which is no list of messages")
        return made

    return ChatFormat(to_messages)


def format_sources(name: str) -> list[Source]:
    """Manifest entries for a format's code where it is not ours: data that another version made is made again."""
    if name in CHAT_FORMATS:
        return []
    entry = _entry_point(name)
    package = entry.dist.name if entry.dist else entry.module
    detail = {"package": package, "version": entry.dist.version if entry.dist else None, "function": entry.value}
    file = inspect.getsourcefile(inspect.unwrap(_loaded(entry)))
    content = file_digest(Path(file)) if file and Path(file).is_file() else None
    return [Source(f"package:{package}", json_digest({**detail, "content": content}), detail)]


def _entry_point(name: str) -> EntryPoint:
    offered = entry_points(group=GROUP)
    found = list(offered.select(name=name))
    if len(found) > 1:
        packages = " and ".join(sorted(entry.dist.name if entry.dist else entry.module for entry in found))
        raise UserError(f"chat format '{name}': offered by {packages}", "uninstall one of them")
    if not found:
        known = [*CHAT_FORMATS, *sorted({entry.name for entry in offered} - CHAT_FORMATS.keys())]
        listed = f"there are: {', '.join(known)}"
        near = did_you_mean(name, known)
        remedy = f"{near} {listed}" if near else f"{listed}; a package adds one with the entry point {GROUP}"
        raise UserError(f"no chat format named '{name}'", remedy)
    return found[0]


def _loaded(entry: EntryPoint) -> Callable[[dict[str, Any]], list[Message]]:
    try:
        function = entry.load()
    except Exception as error:
        what = f"chat format '{entry.name}': {entry.value} cannot be loaded: {type(error).__name__}: {error}"
        raise UserError(what, "correct or reinstall the package that offers it") from error
    if not callable(function):
        what = f"chat format '{entry.name}': {entry.value} is no function"
        raise UserError(what, "let the entry point name a function from a row to its messages")
    return function
