"""Play episodes: the model writes, the environment answers, turn by turn, for a whole batch of rows at once.

    PROMPT  <|im_start|>user\\nHow is the key of 20?<|im_end|>\\n<|im_start|>assistant\\n
    model   <tool_call>{"name": "find", "arguments": {"name": "20"}}</tool_call><|im_end|>                 mask 1
    env     \\n<|im_start|>tool\\n<tool_response>{"box":"8"}</tool_response><|im_end|>\\n<|im_start|>assistant\\n  0
    model   white<|im_end|>                                                                                1

Token ids are never made anew from text: what the model wrote stays as it was sampled, and what the environment says is
put behind it, as NeMo-RL does. An episode ends with a token of the model's.

Two loops, those of NeMo-Gym's agents of these names:

    simple_agent        POST /seed_session, then each tool call at its own path, and /verify at the end gives the reward
    gymnasium_agent     POST /reset, then /step with each turn, which answers it; the reward is the sum of the steps'

A model reaches the tools of its row and nothing else. Whatever keeps the environment from answering is a `Failure`:
it stops everything, or takes that one episode out, but is no reward.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from nemotron_data.chat.answers import Parts
from nemotron_data.chat.prompt import Prompt, Prompter, conversation_of
from nemotron_data.chat.rows import Message
from nemotron_data.formats.rl_rows import PARAMETERS, RLRow
from nemotron_data.gym.catalogue import OTHER_ENGINE, TOOLS_AGENT, TURNS_AGENT, Agent, find_environment
from nemotron_data.gym.client import Answer, Client, Cookies, Failure, Post
from nemotron_data.gym.server import Server
from nemotron_shared.config.environments import EnvironmentsSection
from nemotron_shared.errors import UserError

TO_THE_MODEL = (200, 400, 422)
"""Statuses of a tool's answer that the model reads, as simple_agent has it: it may have called the tool wrongly."""
ENDING_SECONDS = 0.5
FEWEST_FAILED = 8
"""Episodes that fail all together are no accident: with `on_failure=mask` a run stops there as well."""
FIXED = {"agent_ref", PARAMETERS, "response", "reward"}

Ended = Literal["answered", "turns", "tokens", "cut", "failed"]
"""How an episode ended: by itself; at `max_turns`; for lack of tokens; cut within a turn; or the environment failed."""


@dataclass(frozen=True)
class Asked:
    """A row that begins an episode."""

    row: Mapping[str, Any]
    agent: Agent
    messages: list[Message]
    tools: list[dict[str, Any]]
    shown: list[dict[str, Any]] | None
    """Those of `tools` that the template is given."""
    prompt: Prompt


@dataclass
class Sampled:
    """One turn of the model: ids up to the end token, or to the longest length; of each token what the caller notes."""

    ids: list[int]
    logps: list[float] = field(default_factory=list)
    experts: list[int] = field(default_factory=list)


@dataclass
class Episode:
    """What has been said in an episode. The lists have an entry for each token behind the prompt."""

    asked: Asked
    number: int
    """Its place in the batch."""
    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    """1 for the model's tokens, 0 for the environment's."""
    logps: list[float] = field(default_factory=list)
    experts: list[int] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    output: list[dict[str, Any]] = field(default_factory=list)
    """Items of the Responses API, as verifiers read them."""
    read: int = 0
    """Items before the last turn."""
    in_thought: bool = False
    turns: int = 0
    reward: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)
    """Numbers that the environment gave beside the reward."""
    counts: Counter[str] = field(default_factory=Counter)
    ended: Ended | None = None
    cookies: Cookies = field(default_factory=dict)

    @property
    def answer(self) -> str:
        """The text of the last turn."""
        return next((str(one["content"]) for one in reversed(self.messages) if one["role"] == "assistant"), "")

    def add(self, turn: Sampled) -> None:
        """Append what the model wrote."""
        self.ids += turn.ids
        self.own += [1] * len(turn.ids)
        self.logps += turn.logps
        self.experts += turn.experts
        self.turns += 1

    def add_environment(self, said: Prompt) -> None:
        """Append what the environment said; nothing was drawn there."""
        self.ids += said.ids
        self.own += [0] * len(said.ids)
        self.logps += [0.0] * len(said.ids)
        self.experts += [0] * len(said.ids)
        self.in_thought = said.in_thought


Sample = Callable[[Sequence[Episode], int], Sequence[Sampled]]
"""The next turn of each of these episodes; and the number of the turn, from 0."""


class Environments:
    """The servers that a config names, and the agents whose loops are run with them.

    Use it as a context: the servers start at once, are waited for when they are needed, and end with the block.

    Args:
        folder: for the servers' logs.
    """

    def __init__(self, settings: EnvironmentsSection, folder: Any) -> None:
        self.settings = settings
        found = [find_environment(name) for name in settings.servers]
        if len({one.name for one in found}) < len(found):
            raise UserError(f"environments: {', '.join(settings.servers)}: one is named twice", "name each once")
        self.agents = {agent.name: agent for one in found for agent in one.agents.values()}
        self._found, self._folder = found, folder
        self._servers: dict[str, Server] = {}
        self._clients: dict[str, Client] = {}
        self.seconds = 0.0
        """Spent waiting for answers."""
        self.requests = 0

    def __enter__(self) -> "Environments":
        try:
            for one in self._found:
                self._servers[one.name] = Server(one, self._folder / f"{one.name}.log")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for server in self._servers.values():
            server.end()

    def told(self) -> list[str]:
        """One line for each server, once it is ready."""
        return [
            f"environment '{name}': port {server.port}, process {server.pid}" for name, server in self._servers.items()
        ]

    def ask(self, row: RLRow, prompter: Prompter) -> Asked:
        """A row as the beginning of an episode.

        Raises:
            UserError: its agent is not one of these, or runs a loop that we do not have; or it cannot be shown.
        """
        agent = self.agents.get(row.agent or "")
        if agent is None:
            known = ", ".join(sorted(self.agents))
            what = f"its agent '{row.agent}' is none of the environments' ({known})"
            raise UserError(what, f"name its environment in `servers`, or {OTHER_ENGINE}")
        if agent.kind not in (TOOLS_AGENT, TURNS_AGENT):
            what = f"its agent '{agent.name}' is a {agent.kind}, and the loops here are {TOOLS_AGENT} and {TURNS_AGENT}"
            raise UserError(what, OTHER_ENGINE)
        messages, tools = conversation_of(row.value[PARAMETERS])
        shown = tools if self.settings.show_tools else None
        return Asked(row.value, agent, messages, tools or [], shown, prompter.chat(messages, shown))

    def post(self, name: str, posts: Sequence[Post]) -> list[Answer | Failure]:
        """Ask one server; failures say what became of it."""
        server, settings = self._servers[name], self.settings
        if name not in self._clients:
            timeout, connections = settings.timeout_seconds, settings.connections
            self._clients[name] = Client(server.port, timeout=timeout, connections=connections)
        began = time.monotonic()
        try:
            answers = self._clients[name].post(posts)
        finally:
            self.seconds += time.monotonic() - began
        self.requests += len(posts)
        if any(isinstance(one, Failure) for one in answers) and (state := server.state(ENDING_SECONDS)):
            return [Failure(f"{one}; {state}") if isinstance(one, Failure) else one for one in answers]
        return answers

    def has_ended(self, name: str) -> bool:
        """Whether a server has ended."""
        return bool(self._servers[name].state())

    def log_of(self, name: str) -> Any:
        """The file that a server's output goes to."""
        return self._servers[name].log


class Loop:
    """Plays batches of episodes.

    Args:
        tokenizer: of the model.
        ends: ids that end a turn.
        turn_tokens: of one turn of the model, at most.
    """

    def __init__(
        self, environments: Environments, prompter: Prompter, tokenizer: Any, ends: Iterable[int], turn_tokens: int
    ) -> None:
        self.environments, self._settings = environments, environments.settings
        self._prompter, self._tokenizer = prompter, tokenizer
        self._ends, self._turn_tokens = frozenset(ends), turn_tokens
        self._last = ""

    def play(self, asked: Sequence[Asked], sample: Sample) -> list[Episode]:
        """Play one episode for each row, to their ends.

        Raises:
            UserError: an environment failed, with `on_failure=stop`, or has ended, or failed in all of many episodes;
                or the template writes earlier turns anew.
        """
        episodes = [
            Episode(one, number, list(one.prompt.ids), messages=list(one.messages), in_thought=one.prompt.in_thought)
            for number, one in enumerate(asked)
        ]
        self._begin(episodes)
        for turn in range(self._settings.max_turns):
            live = [episode for episode in episodes if episode.ended is None]
            if not live:
                break
            for episode, sampled in zip(live, sample(live, turn), strict=True):
                episode.add(sampled)
                self._read(episode, sampled)
            self._act(live)
        self._verify(episodes)
        return episodes

    def _begin(self, episodes: Sequence[Episode]) -> None:
        """Open a session for each, and take in what the environment says first."""
        paths = {TOOLS_AGENT: "/seed_session", TURNS_AGENT: "/reset"}
        for episode, fields in self._asked(episodes, lambda one: (paths[one.asked.agent.kind], one.asked.row)):
            if episode.asked.agent.kind == TURNS_AGENT and fields.get("observation"):
                episode.messages.append({"role": "user", "content": str(fields["observation"])})
                prompt = self._prompter.chat(episode.messages, episode.asked.shown)
                episode.prompt, episode.in_thought = list(prompt.ids), prompt.in_thought

    def _read(self, episode: Episode, sampled: Sampled) -> None:
        """Take a turn apart: what was said, and which tools it calls."""
        episode.read = len(episode.output)
        whole = bool(sampled.ids) and sampled.ids[-1] in self._ends
        text = self._tokenizer.decode(sampled.ids[:-1] if whole else sampled.ids, skip_special_tokens=False)
        parts = Parts(episode.in_thought, episode.asked.tools).feed(text, at_end=True)
        said = "".join(part.text for part in parts if part.kind == "content")
        thought = "".join(part.text for part in parts if part.kind == "reasoning")
        calls = [part.call.as_message(f"call_{episode.turns}_{k}") for k, part in enumerate(parts) if part.call]
        message: Message = {"role": "assistant", "content": said}
        message |= {"reasoning_content": thought} if thought else {}
        episode.messages.append(message | ({"tool_calls": calls} if calls and whole else {}))
        if said or not calls:
            content = [{"type": "output_text", "text": said, "annotations": []}]
            told = {"id": f"msg_{episode.turns}", "type": "message", "role": "assistant", "status": "completed"}
            episode.output.append(told | {"content": content})
        if not whole:
            episode.ended = "cut"
            return
        for call in calls:
            function = call["function"]
            told = {"id": call["id"], "call_id": call["id"], "type": "function_call", "status": "completed"}
            episode.output.append(told | function)
        if episode.asked.agent.kind == TOOLS_AGENT and not calls:
            episode.ended = "answered"

    def _act(self, live: Sequence[Episode]) -> None:
        """Have the environment answer the turn of each, and put that behind it where the episode goes on.

        A turn that was cut is a move as well where turns are rewarded: else rambling would be a way around a loss.
        """
        answers: dict[int, list[Message]] = {episode.number: [] for episode in live}
        turns = [episode for episode in live if episode.asked.agent.kind == TURNS_AGENT]
        for episode, fields in self._asked(
            turns, lambda one: ("/step", dict(one.asked.row) | _response(one.output[one.read :]))
        ):
            self._step(episode, fields, answers[episode.number])
        live = [episode for episode in live if episode.ended is None]
        self._call([episode for episode in live if episode.asked.agent.kind == TOOLS_AGENT], answers)
        for episode in live:
            if episode.ended is not None:
                continue
            if episode.turns >= min(self._settings.max_turns, episode.asked.agent.max_steps or math.inf):
                episode.ended = "turns"
                continue
            more = answers[episode.number]
            most = self._settings.max_episode_tokens - len(episode.ids) - self._turn_tokens
            end = self._tokenizer.decode([episode.ids[-1]])
            said = self._prompter.following(episode.messages, more, episode.asked.shown, end, max(0, most))
            if said is None:
                episode.ended = "tokens"
                continue
            episode.add_environment(said)
            episode.messages += more

    def _step(self, episode: Episode, fields: Mapping[str, Any], answers: list[Message]) -> None:
        """Read the answer of /step."""
        reward, info = fields.get("reward"), fields.get("info") or {}
        if not _is_finite(reward):
            self._fail(episode, Failure(f"POST /step: no finite reward: {reward!r}"))
            return
        episode.reward += float(reward)  # ty: ignore[invalid-argument-type]
        episode.figures |= _numbers(info, ())
        if fields.get("terminated") or fields.get("truncated"):
            episode.ended = episode.ended or "answered"
        if episode.ended is not None:
            return
        for told in info.get("tool_outputs", ()):
            answers.append(_result(episode, str(told["call_id"]), str(told["output"])))
        if fields.get("observation"):
            answers.append({"role": "user", "content": str(fields["observation"])})
            episode.output.append({"type": "message", **answers[-1]})
        if not answers:
            self._fail(episode, Failure("POST /step: the episode goes on, and there is nothing to answer"))

    def _call(self, live: Sequence[Episode], answers: Mapping[int, list[Message]]) -> None:
        """Call the tools of the last turn of each: the first calls of all of them at once, then the second ones."""
        pending = {one.number: list(one.messages[-1].get("tool_calls") or ()) for one in live}
        while live := [one for one in live if pending[one.number] and one.ended is None]:
            calls = {one.number: pending[one.number].pop(0) for one in live}
            allowed, posts = [], list[Post]()
            for one in live:
                call = calls[one.number]
                name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
                one.counts["calls"] += 1
                if name in {tool["function"]["name"] for tool in one.asked.tools}:  # never /verify, or another's tool
                    allowed.append(one)
                    posts.append((f"/{name}", arguments, one.cookies))
                else:
                    one.counts["refused_calls"] += 1
                    told = json.dumps({"error": f"there is no tool named '{name}'"})
                    answers[one.number].append(_result(one, call["id"], told))
            for one, answer in self._posted(allowed, posts):
                if isinstance(answer, Answer) and answer.status not in TO_THE_MODEL:
                    answer = Failure(f"POST {answer.path}: status {answer.status}: {answer.text[:200]}")
                if isinstance(answer, Failure):
                    self._fail(one, answer)
                else:
                    answers[one.number].append(_result(one, calls[one.number]["id"], answer.text))

    def _verify(self, episodes: Sequence[Episode]) -> None:
        """Ask for the rewards; with tools, whatever way an episode ended."""
        played = [one for one in episodes if one.asked.agent.kind == TOOLS_AGENT and one.ended != "failed"]
        for episode, fields in self._asked(
            played, lambda one: ("/verify", dict(one.asked.row) | _response(one.output))
        ):
            reward = fields.get("reward")
            if not _is_finite(reward):
                self._fail(episode, Failure(f"POST /verify: no finite reward: {reward!r}"))
                continue
            episode.reward = float(reward)  # ty: ignore[invalid-argument-type]
            episode.figures |= _numbers(fields, episode.asked.row)
        failed = sum(one.ended == "failed" for one in episodes)
        if failed == len(episodes) >= FEWEST_FAILED:
            raise UserError(f"all {failed} episodes of a batch failed; the last: {self._last}", "mend the environment")

    def _asked(
        self, episodes: Sequence[Episode], post: Callable[[Episode], tuple[str, Mapping[str, Any]]]
    ) -> list[tuple[Episode, dict[str, Any]]]:
        """The fields of good answers, by episode; whatever else comes is a failure."""
        found = []
        for episode, answer in self._posted(episodes, [(*post(one), one.cookies) for one in episodes]):
            try:
                if isinstance(answer, Failure):
                    raise answer
                found.append((episode, answer.fields()))
            except Failure as failure:
                self._fail(episode, failure)
        return found

    def _posted(self, episodes: Sequence[Episode], posts: Sequence[Post]) -> list[tuple[Episode, Answer | Failure]]:
        """Answers in the order of the episodes, each from its own server."""
        found: dict[int, Answer | Failure] = {}
        for name in sorted({one.asked.agent.environment for one in episodes}):
            mine = [k for k, one in enumerate(episodes) if one.asked.agent.environment == name]
            answers = self.environments.post(name, [posts[k] for k in mine])
            found |= dict(zip(mine, answers, strict=True))
        return [(one, found[k]) for k, one in enumerate(episodes)]

    def _fail(self, episode: Episode, failure: Failure) -> None:
        """Take an episode out, or stop."""
        name = episode.asked.agent.environment
        self._last = f"environment '{name}': {failure}"
        if self.environments.has_ended(name):  # nobody will answer any more, so there is nothing to go on with
            raise UserError(self._last, f"see {self.environments.log_of(name)}")
        if self._settings.on_failure == "stop":
            log = self.environments.log_of(name)
            raise UserError(self._last, f"see {log}; on_failure=mask leaves such episodes out, and counts them")
        episode.ended = "failed"


def told(episode: Episode) -> Iterator[str]:
    """An episode for people: what was called, what came back, and what was said."""
    for item in episode.output:
        if item["type"] == "function_call":
            yield f"{item['name']}({item['arguments']})"
        elif item["type"] == "function_call_output":
            yield f"-> {item['output'][:200]}"
        elif item["role"] == "user":
            yield f"-> {item['content'][:200]}"
        else:
            yield "".join(part["text"] for part in item["content"])


def _response(output: list[dict[str, Any]]) -> dict[str, Any]:
    """The field `response` of /verify and /step."""
    about = {"id": "resp", "created_at": 0, "model": "policy", "object": "response"}
    return {"response": about | {"output": output, "tool_choice": "auto", "parallel_tool_calls": True, "tools": []}}


def _result(episode: Episode, call: str, output: str) -> Message:
    """A tool's result as a message; it is noted as an item, too."""
    episode.output.append({"type": "function_call_output", "call_id": call, "output": output})
    return {"role": "tool", "tool_call_id": call, "content": output}


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _numbers(fields: Mapping[str, Any], beside: Iterable[str]) -> dict[str, float]:
    """Numbers among fields that are neither the row's nor known."""
    known = {*FIXED, *beside}
    return {name: float(value) for name, value in fields.items() if name not in known and _is_finite(value)}
