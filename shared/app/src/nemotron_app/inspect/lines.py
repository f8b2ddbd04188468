"""JSON rows of reinforcement learning and evaluation, read line by line in constant memory.

{"responses_create_params": {"input": [{"role": "user", "content": "What is 3+4?"}]}, "expected_answer": "7",
 "agent_ref": {"type": "responses_api_agents", "name": "math_with_judge_simple_agent"}}
{"question": "Compute 7-1.", "expected": "6", "key": "7-1"}
"""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nemotron_app.inspect.examples import DataFile, Example, Split
from nemotron_data.formats.eval_tasks import search_key
from nemotron_data.formats.json_lines import parse
from nemotron_data.formats.rl_rows import PARAMETERS, RLRow, validate, validate_prompt
from nemotron_data.rejects import Refused
from nemotron_shared.atomic import open_regular
from nemotron_shared.errors import UserError, disk_remedy

PLACEHOLDER = "_hf_placeholder"
ANSWERS = ("expected_answer", "expected", "answer")
BYTES_PER_TOKEN = 4  # converts a token budget to bytes of text
FACT_CHARACTERS = 400


class LineSplit(Split):
    """Rows of one JSONL file. Empty lines do not count."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        try:
            self._bytes = path.stat().st_size
            self.files = [DataFile(path.stem, None, sum(1 for _ in self._lines()), 0)]
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}", disk_remedy(error)) from error

    def at(self, indices: Sequence[int]) -> list[Example]:
        """See the base class. Reads the file up to the last requested row."""
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
        """See the base class."""
        stride = self._stride(budget)
        return None if stride == 1 else f"one row in {stride:,}"

    def keys(self) -> list[str]:
        """Questions to search for in training text."""
        rows = (row for _, line in self._lines() if (row := parse(line)[0]) is not None)
        return [key for row in rows if (key := search_key(row) or RLRow.of(row).question.strip())]

    def _stride(self, budget: int) -> int:
        return max(1, math.ceil(self._bytes / max(1, budget * BYTES_PER_TOKEN)))

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with open_regular(self.path) as file:
            yield from ((number, line) for number, line in enumerate(file, start=1) if line.strip())

    def _example(self, index: int, number: int, line: bytes) -> Example:
        place = f"{self.path.name}, line {number}"
        value, _ = parse(line)
        if value is None:
            facts = [("line", line[:FACT_CHARACTERS].decode("utf-8", "backslashreplace"))]
            return Example(self.name, index, place, facts=facts, problem="not a JSON object")
        row = RLRow.of(value)
        # Only evaluation rows have no prompt: their question is the user's turn.
        asked = value.get("question") if PARAMETERS not in value and not row.prompt else None
        turns = [(turn.role, turn.text) for turn in row.prompt] + ([("user", asked)] if isinstance(asked, str) else [])
        # Expected answer and agent first, then every field that the turns do not already show.
        texts, parameters = [text for _, text in turns], value.get(PARAMETERS)
        fields: list[tuple[str, Any]] = [(name.replace("_", " "), value[name]) for name in ANSWERS if name in value]
        fields += [("agent", row.agent)] if row.agent else []
        hidden = {*ANSWERS, "agent_ref", PARAMETERS}
        fields += [(name, field) for name, field in value.items() if name not in hidden and field not in texts]
        if isinstance(parameters, dict):
            fields += [(name, field) for name, field in parameters.items() if name != "input"]
        facts = []
        for name, field in fields:
            text = field if isinstance(field, str) else json.dumps(field, ensure_ascii=False)
            facts.append((name, text if len(text) <= FACT_CHARACTERS else text[: FACT_CHARACTERS - 1] + "…"))
        return Example(self.name, index, place, turns=turns, facts=facts, agent=row.agent, problem=_problem(row))


def _problem(row: RLRow) -> str | None:
    """Problems for a trainer or a verifier. Rows without a prompt belong to evaluations."""
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
