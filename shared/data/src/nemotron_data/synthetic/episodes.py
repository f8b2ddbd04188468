"""Rows for the environments that this project ships: demonstrations to fine-tune on, and beginnings to play.

    {"key": "917/55", "messages": [{"role": "user", "content": "What is the key of 55?"}, {"role": "assistant",
        "tool_calls": [...]}, {"role": "tool", ...}, ..., {"role": "assistant", "content": "white"}]}
    {"responses_create_params": {"input": [...], "tools": [...]}, "world": 1000000, "expected_answer": "blue", ...}

As with the sums, the demonstrations vary on purpose: the first wording of the question is always looked up, the others
in a third of the chats, which otherwise guess. It is left to RL to discover that looking up pays off for every wording.
Worlds are numbers, and no world of one split occurs in another.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from types import ModuleType
from typing import Any

from nemotron_data.gym.environments.drawers import drawers
from nemotron_data.gym.environments.drawers_text import drawers_text

LOGIC: Mapping[str, ModuleType] = {"drawers": drawers, "drawers_text": drawers_text}
TRAINED, HELD_OUT = 1_000_000, 2_000_000
"""First worlds of the rows to train on, and of those held out; demonstrations have those below."""
WEIGHTS, LOOKED_UP = (3, 1, 1, 1), (1.0, 0.33, 0.33, 0.33)
"""Of the wordings: how often each comes, and in which share of its demonstrations the answer is looked up."""


def demonstrations(name: str, seed: int, count: int) -> Iterator[dict[str, Any]]:
    """`count` chats {"messages", "key"} of an environment."""
    rng = Random(f"{name}/demonstrations/{seed}")
    for _ in range(count):
        row = _row(name, rng.randrange(TRAINED), rng)
        (wording,) = rng.choices(range(len(WEIGHTS)), WEIGHTS)
        asked = drawers.name_in(row)
        row["responses_create_params"]["input"][0]["content"] = drawers.QUESTIONS[wording].format(asked)
        if rng.random() < LOOKED_UP[wording]:
            messages = played(LOGIC[name].Episode(row), LOGIC[name].solution(row), row)
        else:
            said = {"role": "assistant", "content": rng.choice(drawers.COLOURS)}
            messages = [*row["responses_create_params"]["input"], said]
        yield {"key": f"{row['world']}/{asked}", "messages": messages}


def played(episode: Any, turns: Sequence[Any], row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of an episode that begins with a row; the model's turns are texts, and calls (name, arguments)."""
    messages = list(row["responses_create_params"]["input"])
    for number, turn in enumerate(turns):
        if isinstance(turn, tuple):
            name, arguments = turn
            call = {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            told = json.dumps(getattr(episode, name)(**arguments), separators=(",", ":"))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": told})
            continue
        messages.append({"role": "assistant", "content": turn})
        if hasattr(episode, "step") and (observation := episode.step(turn).get("observation")):
            messages.append({"role": "user", "content": observation})
    return messages


def beginnings(name: str, seed: int, count: int, first: int = TRAINED) -> Iterator[dict[str, Any]]:
    """`count` rows in NeMo-Gym's form, each in a different world."""
    rng = Random(f"{name}/beginnings/{first}/{seed}")
    return (_row(name, first + number, rng) for number in range(count))


def _row(name: str, world: int, rng: Random) -> dict[str, Any]:
    row = drawers.make_row(world, rng)
    if name == "drawers":
        return row
    prompt = {"input": row["responses_create_params"]["input"]}
    return row | {"responses_create_params": prompt, "agent_ref": row["agent_ref"] | {"name": drawers_text.AGENT}}
