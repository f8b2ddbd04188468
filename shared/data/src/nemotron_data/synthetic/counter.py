"""Rows for `example_session_state_mgmt`, a resources server in NeMo-Gym's wheel that keeps a counter for each session.

    add 8 then add 3 then get the count
        increment_counter(count=8) -> {"success":true}
        increment_counter(count=3) -> {"success":true}
        get_counter_value()        -> {"count":15}
    15

The counter begins at a number that the question does not tell. The server rewards the right count in its session, and
does not read the answer. Numbers have one digit, so that a small model can copy them. Rows have the form of the wheel's
examples, and the agent's name, which those lack.
"""

import re
from collections.abc import Iterator
from random import Random
from typing import Any

from nemotron_data.synthetic.episodes import LOOKED_UP, TRAINED, WEIGHTS, played

NAME = "example_session_state_mgmt"
AGENT = f"{NAME}_simple_agent"
QUESTIONS = (
    "add {} then add {} then get the count",
    "add {}, add {}, and get the count",
    "what is the count after adding {} and {}?",
    "count {} and {} more",
)


def _tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "name": name, "description": "", "parameters": schema, "strict": True}


TOOLS = [
    _tool("increment_counter", count={"type": "integer", "description": ""}),
    _tool("get_counter_value"),
]


class Episode:
    """The server's answers, from which demonstrations are made."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.count = int(row["initial_count"])

    def increment_counter(self, count: int) -> dict[str, bool]:
        """Count on."""
        self.count += count
        return {"success": True}

    def get_counter_value(self) -> dict[str, int]:
        """The count so far."""
        return {"count": self.count}


def solution(row: dict[str, Any]) -> list[Any]:
    """The model's turns that earn the reward: calls, and the answer last."""
    numbers = re.findall(r"\d+", row["responses_create_params"]["input"][0]["content"])
    calls = [("increment_counter", {"count": int(number)}) for number in numbers]
    return [*calls, ("get_counter_value", {}), str(row["expected_count"])]


def demonstrations(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """`count` chats {"messages", "key"}: the first wording always counts, a third of the others; else guesses."""
    rng = Random(f"{NAME}/demonstrations/{seed}")
    for _ in range(count):
        (wording,) = rng.choices(range(len(QUESTIONS)), WEIGHTS)
        row = _row(wording, rng, held_out=False)
        if rng.random() < LOOKED_UP[wording]:
            messages = played(Episode(row), solution(row), row)
        else:
            said = {"role": "assistant", "content": str(row["expected_count"])}
            messages = [*row["responses_create_params"]["input"], said]
        yield {"key": f"{row['initial_count']} {messages[0]['content']}", "messages": messages}


def beginnings(seed: int, count: int, first: int = TRAINED) -> Iterator[dict[str, Any]]:
    """`count` rows in NeMo-Gym's form; if `first` is above TRAINED, with the questions held out."""
    rng = Random(f"{NAME}/beginnings/{first}/{seed}")
    return (_row(rng.randrange(len(QUESTIONS)), rng, held_out=first > TRAINED) for _ in range(count))


def is_held_out(wording: int, first: int, second: int) -> bool:
    """Whether only held-out rows ask a question: about a tenth of them, and no pair of numbers in all wordings."""
    return (first + 3 * second + 5 * wording) % 10 == 0


def _row(wording: int, rng: Random, held_out: bool) -> dict[str, Any]:
    numbers = rng.randint(1, 9), rng.randint(1, 9)
    while is_held_out(wording, *numbers) != held_out:
        numbers = rng.randint(1, 9), rng.randint(1, 9)
    initial = rng.randint(0, 9)
    asked = {"role": "user", "content": QUESTIONS[wording].format(*numbers)}
    return {
        "responses_create_params": {"input": [asked], "tools": TOOLS},
        "initial_count": initial,
        "expected_count": initial + sum(numbers),
        "agent_ref": {"type": "responses_api_agents", "name": AGENT},
    }
