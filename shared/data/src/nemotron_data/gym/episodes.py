"""Play episodes of several turns between a model and its environments, for a whole batch of rows at once.

    PROMPT  <|im_start|>user\\nHow is the key of 20?<|im_end|>\\n<|im_start|>assistant\\n
    model   <tool_call>{"name": "find", "arguments": {"name": "20"}}</tool_call><|im_end|>                 mask 1
    env     \\n<|im_start|>tool\\n<tool_response>{"box":"8"}</tool_response><|im_end|>\\n<|im_start|>assistant\\n  0
    model   white<|im_end|>                                                                                1

Text is never tokenized again: the model's tokens stay as they were sampled, and the environment's are appended, as in
NeMo-RL. An episode ends with a token of the model.

The two loops are those of NeMo-Gym's agents with these names:

    simple_agent        POST /seed_session, then each tool call at its own path, and /verify for the reward
    gymnasium_agent     POST /reset, then /step with each turn; the reward is the sum over the steps; and at the end
                        /close, if the server has said that it wants it

A model can only call the tools of its row. If the environment cannot answer, that is a `Failure`: it stops the run or
masks the episode, and is never a reward.
"""

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal

from nemotron_data.chat.answers import Parts
from nemotron_data.chat.prompt import Prompt, Prompter, conversation_of
from nemotron_data.chat.rows import Message
from nemotron_data.formats.rl_rows import PARAMETERS, RLRow, validate_tools
from nemotron_data.gym.catalogue import TOOLS_AGENT, TURNS_AGENT, Agent, agent_for, agents_of, find_environments
from nemotron_data.gym.client import SHOWN, Answer, Client, Cookies, Failure, Post
from nemotron_data.gym.server import Server
from nemotron_data.rejects import Refused
from nemotron_shared.config.environments import EnvironmentsSection
from nemotron_shared.system.console import say
from nemotron_shared.system.errors import UserError

TO_THE_MODEL = (200, 400, 422)
"""Statuses with which a tool's answer goes to the model, as in simple_agent, because the call may be wrong."""
ENDING_SECONDS = 0.5
FEWEST_FAILED = 8
"""If at least so many episodes all fail, the run stops even with `on_failure=mask`."""
FIXED = {"agent_ref", PARAMETERS, "response", "reward", "mask_sample", "failure_kind", "failure_reason"}
"""Fields of the protocol, the last three since NeMo-Gym 0.7.0; other numbers are the environment's own."""

Ended = Literal["answered", "turns", "tokens", "cut", "failed"]
"""How an episode ended: answered, at `max_turns`, at the token limit, in a cut turn, or the environment failed."""


@dataclass(frozen=True)
class Asked:
    """A row that begins an episode."""

    row: Mapping[str, Any]
    agent: Agent
    messages: list[Message]
    tools: list[dict[str, Any]]
    shown: list[dict[str, Any]] | None
    """The tools that the template gets."""
    prompt: Prompt
    place: str = ""
    """`train.jsonl:17` if the row was read from a file."""


@dataclass
class Sampled:
    """One turn of the model: ids up to the end token or the maximum length, and figures of each token."""

    ids: list[int]
    logps: list[float] = field(default_factory=list)
    experts: list[int] = field(default_factory=list)


@dataclass
class Episode:
    """State of an episode. The lists have one entry per token after the prompt."""

    asked: Asked
    number: int
    """Its index in the batch."""
    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    """1 for the model's tokens, 0 for the environment's."""
    logps: list[float] = field(default_factory=list)
    experts: list[int] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    output: list[dict[str, Any]] = field(default_factory=list)
    """Items of the Responses API, which verifiers read."""
    read: int = 0
    """Number of items before the last turn."""
    in_thought: bool = False
    turns: int = 0
    reward: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)
    """Numbers from the environment other than the reward."""
    counts: Counter[str] = field(default_factory=Counter)
    ended: Ended | None = None
    cookies: Cookies = field(default_factory=dict)
    closes: bool = False
    """Whether its server wants to be told when it is over."""

    @property
    def answer(self) -> str:
        """Text of the last turn."""
        return next((str(one["content"]) for one in reversed(self.messages) if one["role"] == "assistant"), "")

    def add(self, turn: Sampled) -> None:
        """Append a turn of the model."""
        self.ids += turn.ids
        self.own += [1] * len(turn.ids)
        self.logps += turn.logps
        self.experts += turn.experts
        self.turns += 1

    def add_environment(self, said: Prompt) -> None:
        """Append tokens of the environment, which were not sampled."""
        self.ids += said.ids
        self.own += [0] * len(said.ids)
        self.logps += [0.0] * len(said.ids)
        self.experts += [0] * len(said.ids)
        self.in_thought = said.in_thought


Sample = Callable[[Sequence[Episode], int], Sequence[Sampled]]
"""Samples the next turn of each of these episodes; the second argument is the index of the turn."""


class Environments:
    """The servers of a config, and their agents.

    Use it as a context manager: servers start at once, are awaited at their first use, and end with the block.

    Args:
        folder: for logs of the servers.
    """

    def __init__(self, settings: EnvironmentsSection, folder: Any) -> None:
        self.settings = settings
        found = find_environments(settings.servers)
        self.agents = agents_of(found)
        self._found, self._folder = found, folder
        self._servers: dict[str, Server] = {}
        self._clients: dict[str, Client] = {}
        self.seconds = 0.0
        """Time spent waiting for answers."""
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
        """One line per server, once it is ready."""
        return [
            f"environment '{name}': port {server.port}, process {server.pid}" for name, server in self._servers.items()
        ]

    def doubts(self) -> list[str]:
        """One line for each server that is not known to give the same answers to the same turns of the same row."""
        pairs = zip(self.settings.servers, self._found, strict=True)
        return [
            f"environment '{name}': not known to be replayable; if the same turns of a row get other answers, "
            f"a resumed run gives other weights (see: nemotron env try {name})"
            for name, one in pairs
            if not one.known_replayable
        ]

    def ask(self, row: RLRow, prompter: Prompter) -> Asked:
        """Start an episode from a row.

        Raises:
            UserError: its agent is unknown or has a loop that is not implemented here, a tool cannot be called by its
                name or is none of the environment, or it cannot be rendered.
        """
        messages, tools = conversation_of(row.value[PARAMETERS])
        try:
            validate_tools(tools or ())
        except Refused as refused:
            raise UserError(str(refused), refused.finding.remedy) from refused
        agent = agent_for(row, self.agents, lambda name: self._servers[name].tools)
        shown = tools if self.settings.show_tools else None
        return Asked(row.value, agent, messages, tools or [], shown, prompter.chat(messages, shown), row.place)

    def post(self, name: str, posts: Sequence[Post]) -> list[Answer | Failure]:
        """Post to one server; failures mention how it ended, if it did."""
        server, settings = self._servers[name], self.settings
        if name not in self._clients:
            timeout, connections = settings.timeout_seconds, settings.connections
            masks = self.settings.on_failure == "mask"
            self._clients[name] = Client(server.port, timeout=timeout, connections=connections, to_the_end=masks)
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
        """Whether a server process has ended."""
        return bool(self._servers[name].state())

    def log_of(self, name: str) -> Any:
        """Log file of a server."""
        return self._servers[name].log


class Loop:
    """Play batches of episodes.

    Args:
        tokenizer: the model's.
        ends: ids that end a turn.
        turn_tokens: maximum tokens of one turn.
    """

    def __init__(
        self, environments: Environments, prompter: Prompter, tokenizer: Any, ends: Iterable[int], turn_tokens: int
    ) -> None:
        self.environments, self._settings = environments, environments.settings
        self._prompter, self._tokenizer = prompter, tokenizer
        self._ends, self._turn_tokens = frozenset(ends), turn_tokens
        self._last, self._most_failed = "", 0

    def play(self, asked: Sequence[Asked], sample: Sample) -> list[Episode]:
        """Play one episode per row to the end.

        Raises:
            UserError: an environment failed with `on_failure=stop`, its server ended, or all of many episodes failed;
                or the template changes earlier turns.
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
        self._close(episodes)
        return episodes

    def _begin(self, episodes: Sequence[Episode]) -> None:
        """Open a session for each episode, and append the environment's first message, if any."""
        paths = {TOOLS_AGENT: "/seed_session", TURNS_AGENT: "/reset"}
        for episode, fields in self._asked(episodes, lambda one: (paths[one.asked.agent.kind], one.asked.row)):
            info = fields.get("info")
            episode.closes = isinstance(info, dict) and info.get("supports_explicit_close") is True
            if episode.asked.agent.kind == TURNS_AGENT and fields.get("observation"):
                episode.messages.append({"role": "user", "content": str(fields["observation"])})
                prompt = self._prompter.chat(episode.messages, episode.asked.shown)
                episode.prompt, episode.in_thought = list(prompt.ids), prompt.in_thought

    def _read(self, episode: Episode, sampled: Sampled) -> None:
        """Parse a turn into text, reasoning and tool calls."""
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
        """Let the environment answer the latest turns, and append its answers to the episodes that continue.

        With /step, a cut turn counts as a move too; otherwise a model could avoid losing by rambling.
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
            others = [self._tokenizer.decode([one]) for one in self._ends - {episode.ids[-1]}]
            said = self._prompter.following(episode.messages, more, episode.asked.shown, end, max(0, most), others)
            if not isinstance(said, Prompt):
                episode.ended = said
                continue
            episode.add_environment(said)
            episode.messages += more

    def _step(self, episode: Episode, fields: Mapping[str, Any], answers: list[Message]) -> None:
        """Read the answer of /step."""
        reward, info = fields.get("reward"), fields.get("info") or {}
        if not _is_finite(reward):
            self._fail(episode, Failure(f"POST /step: no finite reward: {reward!r}"))
            return
        try:
            results = [(str(told["call_id"]), str(told["output"])) for told in info.get("tool_outputs") or ()]
        except (AttributeError, TypeError, KeyError):
            what = "POST /step: info is not an object, or one of its tool_outputs is not {call_id: ..., output: ...}"
            self._fail(episode, Failure(f"{what}: {str(info)[:SHOWN]}"))
            return
        episode.reward += float(reward)  # ty: ignore[invalid-argument-type]
        episode.figures |= _numbers(info, ())
        if fields.get("terminated") or fields.get("truncated"):
            episode.ended = episode.ended or "answered"
        if episode.ended is not None:
            return
        answers += (_result(episode, *result) for result in results)
        if fields.get("observation"):
            answers.append({"role": "user", "content": str(fields["observation"])})
            episode.output.append({"type": "message", **answers[-1]})
        if not answers:
            self._fail(episode, Failure("POST /step: the episode continues, with nothing to answer"))

    def _call(self, live: Sequence[Episode], answers: Mapping[int, list[Message]]) -> None:
        """Call the tools of the latest turns: the first call of every episode at once, then the second ones."""
        pending = {one.number: list(one.messages[-1].get("tool_calls") or ()) for one in live}
        while live := [one for one in live if pending[one.number] and one.ended is None]:
            calls = {one.number: pending[one.number].pop(0) for one in live}
            allowed, posts = [], list[Post]()
            for one in live:
                call = calls[one.number]
                name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
                one.counts["calls"] += 1
                if name in {
                    tool["function"]["name"] for tool in one.asked.tools
                }:  # never /verify, nor tools of other rows
                    allowed.append(one)
                    posts.append((f"/{name}", arguments, one.cookies))
                else:
                    one.counts["refused_calls"] += 1
                    told = json.dumps({"error": f"there is no tool named '{name}'"})
                    answers[one.number].append(_result(one, call["id"], told))
            for one, answer in self._posted(allowed, posts):
                if isinstance(answer, Answer) and answer.status not in TO_THE_MODEL:
                    answer = Failure(f"POST {answer.path}: status {answer.status}: {answer.text[:SHOWN]}")
                if isinstance(answer, Failure):
                    self._fail(one, answer)
                else:
                    answers[one.number].append(_result(one, calls[one.number]["id"], answer.text))

    def _verify(self, episodes: Sequence[Episode]) -> None:
        """Get the rewards of episodes with tools, regardless of how they ended."""
        played = [one for one in episodes if one.asked.agent.kind == TOOLS_AGENT and one.ended != "failed"]
        for episode, fields in self._asked(
            played, lambda one: ("/verify", dict(one.asked.row) | _response(one.output))
        ):
            reward = fields.get("reward")
            if fields.get("mask_sample") is True:  # a judge that cannot be reached gives a reward of 0 with it
                why = str(fields.get("failure_reason") or fields.get("failure_kind") or "without a reason")[:SHOWN]
                self._fail(episode, Failure(f"POST /verify: the environment says that it could not judge: {why}"))
                continue
            if not _is_finite(reward):
                self._fail(episode, Failure(f"POST /verify: no finite reward: {reward!r}"))
                continue
            episode.reward = float(reward)  # ty: ignore[invalid-argument-type]
            episode.figures |= _numbers(fields, episode.asked.row)
        failed = sum(one.ended == "failed" for one in episodes)
        if failed == len(episodes) >= FEWEST_FAILED:
            raise UserError(f"all {failed} episodes of a batch failed; the last: {self._last}", "fix the environment")
        if failed > self._most_failed:
            self._most_failed = failed
            say(f"{failed} of {len(episodes)} episodes failed and are left out; the last: {self._last}")

    def _close(self, episodes: Sequence[Episode]) -> None:
        """Tell the servers that want it that episodes are over, so that they can free what these held.

        As with NeMo-Gym's agent, the reward stands when that fails.
        """
        over = [one for one in episodes if one.closes]
        for one, answer in self._posted(over, [("/close", {}, one.cookies) for one in over]):
            if isinstance(answer, Failure) or answer.status != 200:
                why = answer if isinstance(answer, Failure) else f"POST /close: status {answer.status}"
                say(f"environment '{one.asked.agent.environment}': an episode was not closed: {why}")

    def _asked(
        self, episodes: Sequence[Episode], post: Callable[[Episode], tuple[str, Mapping[str, Any]]]
    ) -> list[tuple[Episode, dict[str, Any]]]:
        """Fields of successful answers by episode; anything else is a failure."""
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
        """Answers in the order of the episodes, each from the episode's server."""
        found: dict[int, Answer | Failure] = {}
        for name in sorted({one.asked.agent.environment for one in episodes}):
            mine = [k for k, one in enumerate(episodes) if one.asked.agent.environment == name]
            answers = self.environments.post(name, [posts[k] for k in mine])
            found |= dict(zip(mine, answers, strict=True))
        return [(one, found[k]) for k, one in enumerate(episodes)]

    def _fail(self, episode: Episode, failure: Failure) -> None:
        """Mask an episode, or stop."""
        name = episode.asked.agent.environment
        place = f" (the row {episode.asked.place})" if episode.asked.place else ""
        self._last = f"environment '{name}': {failure}{place}"
        if self.environments.has_ended(name):  # no server is left, so masking cannot help
            raise UserError(self._last, f"see {self.environments.log_of(name)}")
        if self._settings.on_failure == "stop":
            log = self.environments.log_of(name)
            raise UserError(self._last, f"see {log}; on_failure=mask leaves such episodes out, and counts them")
        episode.ended = "failed"


def as_turns(episode: Episode, tokenizer: Any) -> list[dict[str, Any]]:
    """Decode an episode with its special tokens: the prompt, then the turns of model and environment.

    Returns:
        {"by": "prompt", "model" or "environment", "tokens": count, "text": ...}; only "model" is trained on.
    """
    said = [("prompt", episode.prompt)]
    for own, pairs in groupby(zip(episode.own, episode.ids, strict=True), key=itemgetter(0)):
        said.append(("model" if own else "environment", [token for _, token in pairs]))
    return [
        {"by": who, "tokens": len(ids), "text": tokenizer.decode(ids, skip_special_tokens=False)} for who, ids in said
    ]


def told(episode: Episode) -> Iterator[str]:
    """Format an episode for people: the environment's first message, calls, results and text."""
    for message in episode.messages[len(episode.asked.messages) :][:1]:
        if message["role"] == "user":
            yield f"-> {message['content'][:200]}"
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
    """Value of the field `response` in /verify and /step."""
    about = {"id": "resp", "created_at": 0, "model": "policy", "object": "response"}
    return {"response": about | {"output": output, "tool_choice": "auto", "parallel_tool_calls": True, "tools": []}}


def _result(episode: Episode, call: str, output: str) -> Message:
    """A tool's result as a message; also adds it to the items."""
    episode.output.append({"type": "function_call_output", "call_id": call, "output": output})
    return {"role": "tool", "tool_call_id": call, "content": output}


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max  # an integer may exceed all floats


def _numbers(fields: Mapping[str, Any], beside: Iterable[str]) -> dict[str, float]:
    """Numbers among the fields that neither the row nor the protocol has."""
    known = {*FIXED, *beside}
    return {name: float(value) for name, value in fields.items() if name not in known and _is_finite(value)}
