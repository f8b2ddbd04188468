"""Play one episode with turns that someone wrote, to see what an environment does.

    for line in play("drawers", row, ["<tool_call>{...}</tool_call>", "white"], folder): ...

    find({"name": "55"})
    -> {"box":"8"}
    white
    reward 1  used_tools 1

`again=4` plays it four more times, and as often on a second server, and says whether the answers were the same.

It is the loop of training, with the characters of the turns as its tokens.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from nemotron_data.chat.prompt import Prompt
from nemotron_data.formats.rl_rows import RLRow
from nemotron_data.gym.catalogue import TOOLS_AGENT, TURNS_AGENT, find_environment
from nemotron_data.gym.episodes import Asked, Environments, Episode, Loop, Sampled, told
from nemotron_data.gym.replay import differing
from nemotron_data.gym.small_server import load_logic
from nemotron_data.synthetic import counter
from nemotron_shared.config.environments import EnvironmentsSection
from nemotron_shared.system.errors import UserError

END = 0
"""An otherwise unused character that ends each turn."""
ROOM = 1 << 20


class Characters:
    """Stand-in for a tokenizer and its template: each character is a token."""

    def chat(self, messages: Sequence[Any], tools: Any = None) -> Prompt:
        """The text of the messages, which no model reads."""
        return Prompt([ord(sign) for message in messages for sign in str(message["content"])])

    def following(
        self, messages: Sequence[Any], more: Sequence[Any], tools: Any, end: str, most: int, others: Sequence[str]
    ) -> Prompt | Literal["tokens"]:
        """The environment's text, if it fits."""
        said = [ord(sign) for message in more for sign in str(message["content"])]
        return Prompt(said) if len(said) <= most else "tokens"

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        """The text of some tokens."""
        return "".join(map(chr, ids))


def play(name: str, row: RLRow, turns: Sequence[str], folder: Path, again: int = 0) -> Iterator[str]:
    """Play an episode and yield its lines for people; without turns, play the environment's `solution`.

    Args:
        folder: for the server's log.
        again: how often to play it again for comparison, on this server and on a new one.

    Raises:
        UserError: it fails, has no agent of the row's, or no solution.
    """
    turns = list(turns) or solution(name, row)
    section = EnvironmentsSection(servers=[name], max_turns=len(turns) + 1, max_episode_tokens=ROOM, show_tools=False,
                                  timeout_seconds=60.0, connections=1, on_failure="stop")  # fmt: skip
    written: Any = Characters()
    with Environments(section, folder) as environments:
        named = [name for name, agent in environments.agents.items() if agent.kind in (TOOLS_AGENT, TURNS_AGENT)]
        named = named or list(environments.agents)
        if row.agent is None and len(named) == 1:  # half of NeMo-Gym's examples name none
            row = replace(row, agent=named[0])
        try:
            asked = environments.ask(row, written)
        except UserError as error:
            raise UserError(f"{row.place or 'the row'}: {error.message}", error.remedy) from error
        yield from environments.told()
        for tool in (one["function"] for one in asked.tools):
            named = ", ".join((tool.get("parameters") or {}).get("properties", {}))
            yield f"tool  {tool['name']}({named})  {tool.get('description', '')}".rstrip()
        begun: list[Episode] = []
        try:
            (episode,) = _episodes(environments, [asked], turns, begun)
        except UserError as error:
            yield from told(begun[0]) if begun else ()
            raise UserError(error.message, f"see {environments.log_of(asked.agent.environment)}") from error
        yield from told(episode)
        numbers = {"reward": episode.reward, **episode.figures}
        yield "  ".join(f"{name} {value:g}" for name, value in numbers.items())
        if (left := len(turns) - episode.turns) > 0:
            yield f"the episode ended before the last {left} of {len(turns)} turns"
        played = [episode, *_episodes(environments, [asked] * again, turns)]
    if again:
        with Environments(section, folder) as environments:  # a resumed training starts new servers
            played += _episodes(environments, [asked] * again, turns)
        yield verdict(played, written)


def verdict(played: Sequence[Episode], tokenizer: Any) -> str:
    """Whether the same row and turns got the same answers, for people."""
    for one, other in differing(played, tokenizer).values():
        return f"not replayable: the same turns were answered with '{one}' and '{other}' ({len(played)} plays)"
    return f"replayable as far as {len(played)} plays on two servers show: the same answers each time"


def _episodes(
    environments: Environments, asked: Sequence[Asked], turns: Sequence[str], begun: list[Episode] | None = None
) -> list[Episode]:
    """Play the turns once per entry, all at once; `begun` gets the episodes, to be shown if one fails."""
    written: Any = Characters()
    loop = Loop(environments, written, written, [END], 0)

    def sample(live: Sequence[Episode], turn: int) -> list[Sampled]:
        if begun is not None:
            begun[:] = live
        return [Sampled([*map(ord, turns[turn] if turn < len(turns) else ""), END]) for _ in live]

    return loop.play(asked, sample)


def solution(name: str, row: RLRow) -> list[str]:
    """Turns of the environment's `solution`.

    Raises:
        UserError: it has no solution, or its code fails.
    """
    environment = find_environment(name)
    try:
        logic: Any = load_logic(environment.folder) if environment.logic.is_file() else None
    except Exception as error:  # someone's code may fail in any way
        raise UserError(f"{environment.logic}: {type(error).__name__}: {error}", "correct it") from error
    if environment.name == counter.NAME and environment.by_nemo_gym:
        logic = counter
    if not hasattr(logic, "solution"):
        raise UserError(f"'{environment.name}' has no `solution`", "give the model's turns: --say TEXT --say TEXT")
    try:
        return [one if isinstance(one, str) else as_call(*one) for one in logic.solution(dict(row.value))]
    except (Exception, SystemExit) as error:
        what = f"{environment.logic}: solution: {type(error).__name__}: {error} ({row.place})"
        make = f"python {environment.folder}/rows.py 5 {environment.examples}"
        raise UserError(what, f"correct it; or if the game has changed, make the rows again, as by: {make}") from error


def as_call(name: str, arguments: dict[str, Any]) -> str:
    """A tool call as a model writes it."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
