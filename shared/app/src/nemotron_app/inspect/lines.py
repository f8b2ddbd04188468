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

import orjson

from nemotron_app.inspect.examples import Example, Part
from nemotron_shared.errors import UserError

PARAMETERS = "responses_create_params"
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
            row = _parse(line)
            if isinstance(row, dict):
                yield row

    def _stride(self, budget: int) -> int:
        return max(1, math.ceil(self._bytes / max(1, budget * BYTES_PER_TOKEN)))

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with self.path.open("rb") as file:
            yield from ((number, line) for number, line in enumerate(file, start=1) if line.strip())

    def _example(self, index: int, number: int, line: bytes) -> Example:
        place = f"{self.path.name}, line {number}"
        row = _parse(line)
        if not isinstance(row, dict):
            facts = [("line", line[:FACT_CHARACTERS].decode("utf-8", "backslashreplace"))]
            return Example(self.name, index, place, facts=facts, problem="not a JSON object")
        turns = turns_of(row)
        facts, problem = _facts(row, turns), _problem(row, turns)
        return Example(self.name, index, place, turns=turns, facts=facts, agent=_agent(row), problem=problem)


def turns_of(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(role, text) of a prompt; a plain question is one user turn."""
    parameters = row.get(PARAMETERS)
    asked = parameters.get("input") if isinstance(parameters, dict) else None
    if isinstance(asked, str):
        return [("user", asked)]
    if isinstance(asked, list):
        turns = [turn for turn in asked if isinstance(turn, dict)]
        return [(str(turn.get("role", turn.get("type", "?"))), _content(turn)) for turn in turns]
    return [("user", row["question"])] if isinstance(row.get("question"), str) else []


def key_of(row: Mapping[str, Any]) -> str | None:
    """What a held-out row is looked for by: its key, else its question.

    The key of a multiple-choice row is only its subject, which training may well speak of: there the question counts.
    """
    for field in ("question",) if "choices" in row else ("key", "question"):
        if isinstance(row.get(field), str) and row[field].strip():
            return row[field]
    asked = [text for role, text in turns_of(row) if role == "user" and text.strip()]
    return asked[-1] if asked else None


def _content(turn: Mapping[str, Any]) -> str:
    content = turn.get("content", "")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in content)
    return content if isinstance(content, str) else _short({key: turn[key] for key in turn if key != "role"})


def _facts(row: Mapping[str, Any], turns: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Expected answer and agent first, then every field that the turns do not show already."""
    answers = [(name.replace("_", " "), _short(row[name])) for name in ANSWERS if name in row]
    agent = [("agent", name)] if (name := _agent(row)) else []
    texts = {text for _, text in turns}
    others = [name for name in row if name not in (*ANSWERS, "agent_ref", PARAMETERS) and row[name] not in [*texts]]
    parameters = row.get(PARAMETERS)
    more = {key: value for key, value in parameters.items() if key != "input"} if isinstance(parameters, dict) else {}
    return [*answers, *agent, *((name, _short(row[name])) for name in others), *((k, _short(more[k])) for k in more)]


def _agent(row: Mapping[str, Any]) -> str | None:
    agent = row.get("agent_ref")
    return str(agent.get("name")) if isinstance(agent, dict) else None


def _problem(row: Mapping[str, Any], turns: Sequence[tuple[str, str]]) -> str | None:
    if PLACEHOLDER in row:
        return "a placeholder that was not resolved"
    if PARAMETERS not in row:
        return None
    if not any(role == "user" and text.strip() for role, text in turns):
        return "no user turn"
    return None if any(name in row for name in ANSWERS) else "no expected answer"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= FACT_CHARACTERS else text[: FACT_CHARACTERS - 1] + "…"


def _parse(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        pass  # it is strict about NaN and lone surrogates, which Python's own reader takes
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None  # the example says that it is no JSON object
