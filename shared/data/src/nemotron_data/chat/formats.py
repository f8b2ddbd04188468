"""Chat formats: how a row holds its conversation, and how it becomes messages. One table, open for more.

    messages           {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}
    sharegpt           {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]}
    alpaca             {"instruction": "Add.", "input": "2+2", "output": "4"}
    prompt_response    {"prompt": "2+2?", "response": "4"}, and so on for the other pairs

    recognise({"Question": "2+2?", "Answer": "4"})      # Recognised("question_answer", ("Question", "Answer"))

A new format is a row of `CHAT_FORMATS` and, if none of the functions in `rows.py` serves, a function from a row and its
fields to messages. Recognition looks at field names and the shape of turns. It never guesses: no match and several
matches are errors.

A package adds a format without a change here: a function from a row to its messages, under an entry point whose name
is what `data_prep.format` says.

    [project.entry-points."nemotron.chat_formats"]
    lines = "my_formats:lines"
"""

import inspect
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from nemotron_data.chat.rows import ChatFields, Message, from_messages, from_pair, from_rollout, from_sharegpt, listed
from nemotron_data.rejects import snippet_of
from nemotron_shared.artifacts import Source
from nemotron_shared.config.overrides import override
from nemotron_shared.config.registry import shown
from nemotron_shared.system.digest import file_digest, json_digest
from nemotron_shared.system.errors import UserError, did_you_mean

GROUP = "nemotron.chat_formats"
AUTO = "auto"
TEXT_FIELDS = ("text", "content", "document")
UNKNOWN, SEVERAL, DOCUMENT = "no known chat format", "several chat formats fit", "a document, not a chat"
BY_FORMAT = "say which it is: data_prep.format=NAME"


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """One way to hold a conversation.

    Attributes:
        to_messages: from a row and the names of its fields, to OpenAI-style messages, not yet validated.
        example: a row.
        names: names that each field may have, in lower case; fields from the third on are optional.
        settings: settings of `data_prep` that name the fields instead.
        beside: optional fields, in lower case, that `to_messages` looks for in the row on its own.
        fits: whether a field of that name and value is of this format, if its name does not tell.
    """

    to_messages: Callable[..., list[Message]]
    example: Mapping[str, Any]
    names: Sequence[Sequence[str]] = ()
    settings: Sequence[str] = ()
    beside: Sequence[str] = ()
    fits: Callable[[str, Any], bool] = lambda name, value: True

    @property
    def is_pair(self) -> bool:
        """A question and its answer in fields of their own, which may be numbers."""
        return len(self.names) > 1

    def found_in(self, row: Mapping[str, Any]) -> list[tuple[str, ...]]:
        """The row's fields of this format; several if the row has several lists of turns, none if it does not fit."""
        own = {name.lower().strip(): name for name in row}
        present = [[own[name] for name in alike if name in own] for alike in self.names]
        if not self.is_pair:
            return [(name,) for alike in present for name in alike if self.fits(name.lower().strip(), row[name])]
        return [tuple(names[0] for names in present if names)] if present[0] and present[1] else []


def _is_sharegpt(name: str, turns: Any) -> bool:
    """Whether the first turn has `from` rather than `role`; if it has neither, the field's name decides."""
    turns = listed(turns)
    first = turns[0] if isinstance(turns, list) and turns and isinstance(turns[0], dict) else {}
    return "from" in first if first.keys() & {"from", "role"} else name != "messages"


def _pair(example: Mapping[str, Any], names: Sequence[Sequence[str]], settings: Sequence[str] = ()) -> ChatFormat:
    """A question, its answer, and earlier ones in `history`."""
    return ChatFormat(from_pair, example, names, settings, beside=["history"])


TURN_FIELDS = ("messages", "conversations", "conversation")
CHAT_FORMATS = {
    "messages": ChatFormat(
        from_messages,
        {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]},
        names=[TURN_FIELDS],
        settings=["messages_field"],
        fits=lambda name, turns: not _is_sharegpt(name, turns),
    ),
    "sharegpt": ChatFormat(
        from_sharegpt,
        {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]},
        names=[TURN_FIELDS],
        settings=["conversations_field"],
        fits=_is_sharegpt,
    ),
    "prompt_response": _pair(
        {"prompt": "2+2?", "response": "4"},
        names=[["prompt"], ["response"]],
        settings=["prompt_field", "response_field"],
    ),
    "alpaca": _pair(
        {"instruction": "2+2?", "input": "", "output": "4"},
        names=[["instruction"], ["output", "response"], ["input", "context"]],
    ),
    "prompt_completion": _pair({"prompt": "2+2?", "completion": "4"}, names=[["prompt"], ["completion"]]),
    "question_answer": _pair({"question": "2+2?", "answer": "4"}, names=[["question"], ["answer", "response"]]),
    "input_output": _pair({"input": "2+2?", "output": "4"}, names=[["input"], ["output"]]),
    "rollout": ChatFormat(
        from_rollout,
        {
            "responses_create_params": {"input": "2+2?"},
            "response": {"output": [{"type": "message", "role": "assistant", "content": "4"}]},
        },
        names=[["responses_create_params"], ["response"]],
    ),
}
"""By the name in `data_prep.format`."""


@dataclass(frozen=True, slots=True)
class Recognised:
    """A format, and the fields of this row that it uses."""

    format: str
    fields: tuple[str, ...]


def recognise(row: Mapping[str, Any], name: str = AUTO, named: ChatFields | None = None) -> Recognised:
    """The format of a row, and its fields of this format.

    Args:
        name: the format that the row must have; "auto": whichever fits.
        named: fields that settings name.

    Raises:
        UserError: no format fits, or more than one.
    """
    if name != AUTO and (name not in CHAT_FORMATS or CHAT_FORMATS[name].settings):
        settings = CHAT_FORMATS[name].settings if name in CHAT_FORMATS else ()
        return Recognised(name, tuple(getattr(named or ChatFields(), setting) for setting in settings))
    wanted = CHAT_FORMATS if name == AUTO else (name,)
    found = [Recognised(one, fields) for one in wanted for fields in CHAT_FORMATS[one].found_in(row)]
    found = [one for one in found if one.format == "rollout"] or found  # whose rows may have a question, too
    # alpaca's fields are those of input_output and one more
    found = [one for one in found if not any(set(one.fields) < set(other.fields) for other in found)]
    if len(found) == 1:
        return found[0]
    listed = f"it has the fields {snippet_of(', '.join(row)) or '(none)'}"
    if found:
        raise UserError(f"{SEVERAL}: {' and '.join(one.format for one in found)}; {listed}", _by_hand(row))
    if name != AUTO:
        wanted = " and ".join(f"'{'/'.join(known)}'" for known in CHAT_FORMATS[name].names[:2])
        like = f"no {wanted} as in {json.dumps(CHAT_FORMATS[name].example)}"
        raise UserError(f"not a row of the format {name}: {like}; {listed}", "name another: data_prep.format=auto")
    if any(field.lower().strip() in TEXT_FIELDS for field in row):
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


def messages_of(row: dict[str, Any], name: str = AUTO, named: ChatFields | None = None) -> list[Message]:
    """The messages of a row, not yet validated; see `recognise`."""
    found = recognise(row, name, named)
    return find_format(found.format).to_messages(row, *found.fields)


def format_for(name: str, fields: ChatFields) -> str:
    """The format that settings mean: under `auto`, a field that is named decides."""
    usual = ChatFields()
    named = [key for key in ChatFields.__dataclass_fields__ if getattr(fields, key) != getattr(usual, key)]
    if name != AUTO:
        return name
    return next((form for form, known in CHAT_FORMATS.items() if set(named) & set(known.settings)), name)


def check_format(name: str) -> str:
    """The name as it is.

    Raises:
        UserError: no format has this name; lists those that there are, installed ones included.
    """
    if name != AUTO and name not in CHAT_FORMATS:
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

    def to_messages(row: dict[str, Any]) -> list[Message]:
        """Blame the row for an exception or a wrong result, so that it is counted like other bad rows."""
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
            raise UserError(f"the chat format '{name}' gives {shown(made)}, not a list of messages")
        return made

    return ChatFormat(to_messages, {})


def format_sources(name: str) -> list[Source]:
    """Manifest entries for a format's code where it is not ours: data that another version made is made again."""
    if name == AUTO or name in CHAT_FORMATS:
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
        known = [AUTO, *CHAT_FORMATS, *sorted({entry.name for entry in offered} - CHAT_FORMATS.keys())]
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
        what = f"chat format '{entry.name}': {entry.value} is not a function"
        raise UserError(what, "let the entry point name a function from a row to its messages")
    return function
