"""Play one episode with turns that someone wrote, to see what an environment does.

    for line in play("drawers", row, ["<tool_call>{...}</tool_call>", "white"], folder): ...

    find({"name": "55"})
    -> {"box":"8"}
    white
    reward 1  used_tools 1

It is the loop of training, with the characters of the turns as its tokens.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nemotron_data.chat.prompt import Prompt
from nemotron_data.formats.rl_rows import RLRow
from nemotron_data.gym.catalogue import find_environment
from nemotron_data.gym.episodes import Environments, Episode, Loop, Sampled, told
from nemotron_data.gym.small_server import load_logic
from nemotron_shared.config.environments import EnvironmentsSection
from nemotron_shared.errors import UserError

END = 0
"""A character that nobody writes ends each turn."""
ROOM = 1 << 20


class Characters:
    """In the place of a tokenizer and its template: a token is a character."""

    def chat(self, messages: Sequence[Any], tools: Any = None) -> Prompt:
        """No prompt: nobody reads it."""
        return Prompt([])

    def following(self, messages: Sequence[Any], more: Sequence[Any], tools: Any, end: str, most: int) -> Prompt | None:
        """What the environment said, if there is room for it."""
        said = [ord(sign) for message in more for sign in str(message["content"])]
        return Prompt(said) if len(said) <= most else None

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        """The text of some tokens."""
        return "".join(map(chr, ids))


def play(name: str, row: RLRow, turns: Sequence[str], folder: Path) -> Iterator[str]:
    """The lines of an episode, for people; without turns, those of the environment's own `solution`.

    Args:
        folder: for the server's log.

    Raises:
        UserError: it fails, has no agent of the row's, or no solution.
    """
    turns = list(turns) or solution(name, row)
    section = EnvironmentsSection(servers=[name], max_turns=len(turns) + 1, max_episode_tokens=ROOM, show_tools=False,
                                  timeout_seconds=60.0, connections=1, on_failure="stop")  # fmt: skip
    written: Any = Characters()
    with Environments(section, folder) as environments:
        if row.agent is None and len(environments.agents) == 1:  # half of NeMo-Gym's examples name none
            row = replace(row, agent=next(iter(environments.agents)))
        asked = environments.ask(row, written)
        yield from environments.told()
        loop = Loop(environments, written, written, [END], 0)

        def sample(live: Sequence[Episode], turn: int) -> list[Sampled]:
            return [Sampled([*map(ord, turns[turn] if turn < len(turns) else ""), END]) for _ in live]

        (episode,) = loop.play([asked], sample)
    yield from told(episode)
    numbers = {"reward": episode.reward, **episode.figures}
    yield "  ".join(f"{name} {value:g}" for name, value in numbers.items())


def solution(name: str, row: RLRow) -> list[str]:
    """The turns that an environment of ours says are right.

    Raises:
        UserError: it says nothing of that.
    """
    environment = find_environment(name)
    logic = load_logic(environment.folder) if environment.logic.is_file() else None
    if not hasattr(logic, "solution"):
        raise UserError(
            f"'{environment.name}' does not say what is right", "give the model's turns: --say TEXT --say TEXT"
        )
    return [one if isinstance(one, str) else as_call(*one) for one in logic.solution(dict(row.value))]


def as_call(name: str, arguments: dict[str, Any]) -> str:
    """A tool call as a model writes it."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
