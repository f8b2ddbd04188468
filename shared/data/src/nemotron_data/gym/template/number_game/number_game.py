"""A game to begin with: find a hidden number by comparing.

    Which number from 1 to 9 is hidden?     compare(number=5) -> {"hidden": "more"}     compare(number=7) -> ...     8

An episode must follow from its row alone: then all episodes of a group face the same, a resumed training gets the same
answers, and nothing has to be kept. Take names of tools that no other environment of the training has.
"""

from random import Random
from typing import Any

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "name": "compare",
        "description": "Whether the hidden number is more, less or equal.",
        "parameters": {
            "type": "object",
            "properties": {"number": {"type": "integer"}},
            "required": ["number"],
            "additionalProperties": False,
        },
        "strict": True,
    }
]


class Episode:
    """One episode: made anew from its row."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.hidden = int(row["hidden"])
        self.comparisons = 0

    def compare(self, number: int) -> dict[str, str]:
        """A tool: a method of its name, whose annotations say which arguments are right."""
        self.comparisons += 1
        return {"hidden": "equal" if number == self.hidden else "more" if number < self.hidden else "less"}

    def verify(self, answer: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        """The reward of the last message; `output` has all items. Other numbers are logged beside it."""
        return {"reward": float(answer.strip() == str(self.hidden)), "comparisons": self.comparisons}


def solution(row: dict[str, Any]) -> list[Any]:
    """Turns that earn the reward, for `nemotron env try` and the test: calls as (name, arguments), and texts."""
    return [("compare", {"number": int(row["hidden"])}), str(row["hidden"])]


def make_row(rng: Random) -> dict[str, Any]:
    """A row in NeMo-Gym's form; whatever Episode reads stands beside `responses_create_params`."""
    turn = {"role": "user", "content": "Which number from 1 to 9 is hidden?"}
    return {
        "responses_create_params": {"input": [turn], "tools": TOOLS},
        "hidden": rng.randint(1, 9),
        "agent_ref": {"type": "responses_api_agents", "name": "number_game_simple_agent"},
    }
