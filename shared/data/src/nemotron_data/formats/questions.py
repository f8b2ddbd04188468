"""A question with an answer that can be checked: what rows of reinforcement and evaluation are made of.

{"question": "Ann has 3 apples ...", "answer": "3 + 4 = 7\\n#### 7"}   ->   Question("Ann has 3 apples ...", "7")
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nemotron_data.rejects import Refused


@dataclass(frozen=True, slots=True)
class QuestionFields:
    """Where a row keeps them.

    Attributes:
        answer_pattern: a regular expression whose first group is the answer inside the field; GSM8K: `#### (.+)`.
    """

    question: str
    answer: str
    answer_pattern: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and the answer that is expected."""

    text: str
    expected: str


def read_question(row: Mapping[str, Any], fields: QuestionFields) -> Question:
    """The question of a row.

    Raises:
        Refused: a field is missing or no text, or the answer does not match the pattern.
    """
    question, answer = _text(row, fields.question), _text(row, fields.answer)
    if fields.answer_pattern is not None:
        found = re.search(fields.answer_pattern, answer)
        if found is None:
            raise Refused("no answer in the field", f"'{answer[:80]}'", "correct data_prep.answer_pattern")
        answer = (found[1] if found.groups() else found[0]).strip()
    return Question(question, answer)


def _text(row: Mapping[str, Any], field: str) -> str:
    value = row.get(field)
    if value is None:
        raise Refused(f"no field '{field}'", f"fields here: {', '.join(row)}", "name the field that holds it")
    # a number is an answer as people write it; True is none
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise Refused(f"field '{field}' is not text", type(value).__name__)
    return str(value)
