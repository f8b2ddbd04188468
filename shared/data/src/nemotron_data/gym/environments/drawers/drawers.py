"""A look-up in two steps: whose key is in which box, and what colour the key in that box has.

    What is the key of 55?      find(name="55") -> {"box": "8"}      open(box="8") -> {"key": "white"}      white

The world of a row follows from its number alone, so it is the same for a whole group, there is nothing to keep between
requests, and nothing that a model could learn by heart. Names are numbers, whose digits are single tokens everywhere: a
small model has to copy them, not to spell.
"""

from hashlib import sha256
from random import Random
from typing import Any

COLOURS = ["red", "green", "blue", "yellow", "purple", "grey", "white", "black"]
NAMES = [str(number) for number in range(10, 100)]
QUESTIONS = ("Which key does {} keep?", "What is the key of {}?", "Tell me the key of {}.", "How is the key of {}?")
AGENT = "drawers_simple_agent"


def _tool(name: str, description: str, parameter: str) -> dict[str, Any]:
    properties = {parameter: {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": [parameter], "additionalProperties": False}
    return {"type": "function", "name": name, "description": description, "parameters": schema, "strict": True}


TOOLS = [_tool("find", "The box in which someone keeps the key.", "name"), _tool("open", "The key in a box.", "box")]


class Episode:
    """One episode: `row` has the number of its world, and the expected answer."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.world, self.expected = int(row["world"]), str(row["expected_answer"])

    def find(self, name: str) -> dict[str, str]:
        """The box of a name."""
        return (
            {"box": str(_draw(self.world, f"name {name}", 10))} if name in NAMES else {"error": "nobody of that name"}
        )

    def open(self, box: str) -> dict[str, str]:
        """The key in a box."""
        if len(box) != 1 or not box.isdigit():
            return {"error": "no such box"}
        return {"key": COLOURS[_draw(self.world, f"box {box}", len(COLOURS))]}

    def verify(self, answer: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        """1 for the right colour, however it was found."""
        used = any(item["type"] == "function_call" for item in output)
        return {"reward": float(answer.strip() == self.expected), "used_tools": used}


def solution(row: dict[str, Any]) -> list[Any]:
    """The model's turns that earn the reward: calls, and the answer last."""
    episode, name = Episode(row), name_in(row)
    box = episode.find(name)["box"]
    return [("find", {"name": name}), ("open", {"box": box}), episode.open(box)["key"]]


def name_in(row: dict[str, Any]) -> str:
    """Whom the question is about."""
    question = row["responses_create_params"]["input"][0]["content"]
    return "".join(sign for sign in question if sign.isdigit())


def make_row(world: int, rng: Random) -> dict[str, Any]:
    """A question in a world, as NeMo-Gym has it."""
    name, question = rng.choice(NAMES), rng.choice(QUESTIONS)
    row: dict[str, Any] = {
        "responses_create_params": {"input": [{"role": "user", "content": question.format(name)}], "tools": TOOLS},
        "world": world,
        "expected_answer": "",
        "agent_ref": {"type": "responses_api_agents", "name": AGENT},
    }
    return row | {"expected_answer": solution(row)[-1]}


def _draw(world: int, what: str, count: int) -> int:
    return int.from_bytes(sha256(f"{world}/{what}".encode()).digest()[:8], "big") % count
