"""Which chat format a row has, by the names of its fields and the shape of its turns. Never a guess: none or several
are an error.

    recognise({"Question": "2+2?", "Answer": "4"})      # Recognised("question_answer", ("Question", "Answer"))
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nemotron_data.rejects import snippet_of
from nemotron_shared.config.overrides import override
from nemotron_shared.errors import UserError

# format: names of the question, of the answer, and of what may stand below the question
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
    """A format of the table, and the fields of this row that it is read from."""

    format: str
    fields: tuple[str, ...]


def recognise(row: Mapping[str, Any], only: str | None = None) -> Recognised:
    """The format of a row.

    Args:
        only: one of `PAIRS`, which it has to be.

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
        # its fields are those of input_output and one more
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
    """How to name the fields, with those of the row in the quotes that a shell and the command line want."""
    texts = [name for name, value in row.items() if isinstance(value, str)]
    if len(texts) < 2:
        return f"{BY_FORMAT}, or the fields: data_prep.prompt_field=..., data_prep.response_field=..."
    words = (override(f"data_prep.{key}_field", name) for key, name in zip(("prompt", "response"), texts, strict=False))
    return f"{BY_FORMAT}, or which field is the question and which the answer: {' '.join(map(_typed, words))}"


def _typed(word: str) -> str:
    """A word for a shell, in double quotes where it has single ones of its own."""
    return f'"{word}"' if "'" in word and not set('"$`\\!') & set(word) else shlex.quote(word)


def _turns_in(row: Mapping[str, Any], names: Mapping[str, str]) -> list[Recognised]:
    """Lists of turns, each told by its first turn; an empty one by its name."""
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
