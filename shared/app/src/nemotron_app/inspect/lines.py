"""JSON rows of reinforcement learning and evaluation, read line by line in constant memory.

{"responses_create_params": {"input": [{"role": "user", "content": "What is 3+4?"}]}, "expected_answer": "7",
 "agent_ref": {"type": "responses_api_agents", "name": "math_with_judge_simple_agent"}}
{"question": "Compute 7-1.", "expected": "6", "key": "7-1"}
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nemotron_app.inspect.examples import Example, Part
from nemotron_data.formats.eval_tasks import search_key
from nemotron_data.formats.json_lines import parse
from nemotron_data.formats.rl_rows import PARAMETERS, RLRow, validate, validate_prompt
from nemotron_data.rejects import Refused
from nemotron_shared.errors import UserError

PLACEHOLDER = "_hf_placeholder"
ANSWERS = ("expected_answer", "expected", "answer")
BYTES_PER_TOKEN = 4  # what a budget of tokens means for text
FACT_CHARACTERS = 400


class LineSplit:
    """Rows of one JSONL file. Empty lines do not count."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        try:
            self._bytes = path.stat().st_size
            self.parts = [Part(path.stem, None, sum(1 for _ in self._lines()), None)]
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from error

    def lengths(self) -> Counter[int] | None:
        """Not known without reading the rows."""
        return None

    def at(self, indices: Sequence[int]) -> list[Example]:
        """Rows by their number; the file is read up to the last of them."""
        wanted, found = set(indices), {}
        for index, (number, line) in enumerate(self._lines()):
            if index in wanted:
                found[index] = self._example(index, number, line)
                if len(found) == len(wanted):
                    break
        return [found[index] for index in indices]

    def scan(self, budget: int) -> Iterator[Example]:
        """All rows, or every n-th."""
        stride = self._stride(budget)
        for index, (number, line) in enumerate(self._lines()):
            if index % stride == 0:
                yield self._example(index, number, line)

    def sample_note(self, budget: int) -> str | None:
        """How the rows of `scan` are chosen."""
        stride = self._stride(budget)
        return None if stride == 1 else f"one row in {stride:,}"

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows that are JSON objects."""
        for _, line in self._lines():
            value, _ = parse(line)
            if value is not None:
                yield value

    def _stride(self, budget: int) -> int:
        return max(1, math.ceil(self._bytes / max(1, budget * BYTES_PER_TOKEN)))

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with self.path.open("rb") as file:
            yield from ((number, line) for number, line in enumerate(file, start=1) if line.strip())

    def _example(self, index: int, number: int, line: bytes) -> Example:
        place = f"{self.path.name}, line {number}"
        value, _ = parse(line)
        if value is None:
            facts = [("line", line[:FACT_CHARACTERS].decode("utf-8", "backslashreplace"))]
            return Example(self.name, index, place, facts=facts, problem="not a JSON object")
        row = RLRow.of(value)
        turns = turns_of(row)
        facts = _facts(row, turns)
        return Example(self.name, index, place, turns=turns, facts=facts, agent=row.agent, problem=_problem(row))


def turns_of(row: RLRow) -> list[tuple[str, str]]:
    """(role, text) of a prompt; a question that is no prompt is one user turn."""
    if row.prompt or PARAMETERS in row.value:
        return [(turn.role, turn.text) for turn in row.prompt]
    return [("user", row.value["question"])] if isinstance(row.value.get("question"), str) else []


def key_of(value: Mapping[str, Any]) -> str | None:
    """What a held-out row is looked for by in training text; None where it asks nothing."""
    return search_key(value) or RLRow.of(value).question.strip() or None


def _facts(row: RLRow, turns: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Expected answer and agent first, then every field that the turns do not show already."""
    value = row.value
    answers = [(name.replace("_", " "), _short(value[name])) for name in ANSWERS if name in value]
    agent = [("agent", row.agent)] if row.agent else []
    texts = [text for _, text in turns]
    others = [name for name in value if name not in (*ANSWERS, "agent_ref", PARAMETERS) and value[name] not in texts]
    parameters = value.get(PARAMETERS)
    more = {key: part for key, part in parameters.items() if key != "input"} if isinstance(parameters, dict) else {}
    return [*answers, *agent, *((name, _short(value[name])) for name in others), *((k, _short(more[k])) for k in more)]


def _problem(row: RLRow) -> str | None:
    """What a trainer or a verifier would stumble over. Rows without a prompt are those of evaluations."""
    if PLACEHOLDER in row.value:
        return "a placeholder that was not resolved"
    if PARAMETERS not in row.value:
        return None
    try:
        (validate if "agent_ref" in row.value else validate_prompt)(row.value)
    except Refused as refused:
        return refused.reason
    if not row.question.strip():
        return "no text in the user's turn"
    return None if row.agent or any(name in row.value for name in ANSWERS) else "no expected answer"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= FACT_CHARACTERS else text[: FACT_CHARACTERS - 1] + "…"
