"""Questions with verifiable answers, for RL and evaluation rows.

{"question": "Ann has 3 apples ...", "answer": "3 + 4 = 7\\n#### 7"}   ->   "Ann has 3 apples ...", "7"

Numbers become answers as written in the file: `"answer": 1.50` gives "1.50", with all its digits.
"""

import re
from typing import Any

from nemotron_data.formats.json_lines import is_missing, is_number, text_of, with_numbers_as_written
from nemotron_data.rejects import Refused
from nemotron_data.sources.datasets import field_of, no_field


def read_question(
    row: dict[str, Any],
    question_field: str,
    answer_field: str,
    answer_pattern: str | None = None,
    written: bytes | None = None,
) -> tuple[str, str]:
    """Return the question and the expected answer of a row, both as text.

    Args:
        answer_pattern: a regular expression whose first group is the answer inside the field; GSM8K: `#### (.+)`.
        written: JSON text of the row, if there is one: numbers keep their spelling in it.

    Raises:
        Refused: a field is missing or not text, or the answer does not match the pattern.
    """
    texts = []
    for setting, field in (("question_field", question_field), ("answer_field", answer_field)):
        value = field_of(row, field)
        if value is None:
            raise no_field(row, field, f"data_prep.{setting}")
        if not isinstance(value, str) and not is_number(value):
            raise Refused(f"field '{field}' is not text", type(value).__name__)
        if is_missing(value):
            raise Refused(f"field '{field}' is no number", str(value))
        texts.append(
            text_of(value if isinstance(value, str) else field_of(with_numbers_as_written(row, written), field))
        )
    question, answer = texts
    if answer_pattern is not None:
        found = re.search(answer_pattern, answer)
        # a group that takes no part in the match is None
        said = found and (found[1] if found.groups() else found[0])
        if not said or not said.strip():
            raise Refused("no answer in the field", f"'{answer[:80]}'", "correct data_prep.answer_pattern")
        answer = said.strip()
    return question, answer
