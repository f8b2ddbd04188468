"""Detect the chat format of a row from its field names and the shape of its turns.

    recognise({"Question": "2+2?", "Answer": "4"})      # Recognised("question_answer", ("Question", "Answer"))

Never guesses: no match and several matches are errors.
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nemotron_data.rejects import snippet_of
from nemotron_shared.config.overrides import override
from nemotron_shared.errors import UserError

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
