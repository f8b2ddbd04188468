"""completions.jsonl: a few completions of each step of reinforcement learning, with what each reward gave them.

    {"step": 3, "which": "best", "prompt": "<|im_start|>user\\nWhat is 9+8?...", "completion": "9+8=17\\n17",
     "expected": "17", "rewards": {"strict": 1.0, "well_formed": 1.0}, "reward": 1.2, "advantage": 0.87, "tokens": 12,
     "ended": "stopped"}

The file is in the run's folder, next to metrics.jsonl, and nowhere else: no artifact, export or upload of a result has
it. Of an episode with environments, `completion` is the last answer, and `turns` holds what was said.

It is bounded: texts are cut in the middle, and after step 200 fewer and fewer steps are kept (`is_kept`). Secrets are
redacted before a text is cut.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nemotron_shared.system.atomic import named, open_regular, write_text
from nemotron_shared.system.redaction import redact

FILE = "completions.jsonl"
LONGEST, LONGEST_TURN, MOST_TURNS = 2000, 400, 40
"""Characters of a text and of a turn that are kept, and turns of an episode."""
LONGEST_SECRET = 4000
"""Characters beyond those that are kept in which a secret may begin or end; a private key of 4,096 bits has 3,300."""
WHOLE_STEPS = 200
"""Up to this step every one is kept, and 100 of each further doubling: 1,400 of a million."""
Which = Literal["best", "typical", "worst", "other"]
Ended = Literal["stopped", "cut", "answered", "turns", "tokens", "failed"]
ENDS: dict[Ended, str] = {
    "stopped": "stopped", "cut": "cut", "answered": "answered", "turns": "out of turns", "tokens": "out of tokens",
    "failed": "the environment failed",
}  # fmt: skip


class Turn(BaseModel):
    """A turn of an episode. `by`: who wrote it; only turns of the model are trained on."""

    model_config = ConfigDict(strict=True, frozen=True)

    by: Literal["model", "environment"]
    tokens: int = Field(ge=0)
    text: str


class Completion(BaseModel):
    """One completion of a step.

    Attributes:
        which: its place among the step's completions in the order of rewards: the first, the last, the one in the
            middle, or another one.
        completion: as the rewards read it, without special tokens.
        expected: the row's reference answer; None where no reward asks for one.
        rewards: by name; None where the environment failed.
        reward: their weighted sum, with the penalty for the length where there is one.
        advantage: None where the method does not learn from rewards.
        tokens: of the model.
        ended: with an end token ("stopped", of an episode "answered"), at a limit, or because an environment failed.
        calls, refused_calls: tool calls of an episode, and those of them that no tool answered.
        turns: of an episode, at most `MOST_TURNS`; `turns_in_all` says how many it had.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    step: int = Field(ge=0)
    which: Which
    prompt: str
    completion: str
    expected: str | None = None
    rewards: dict[str, float | None]
    reward: float | None = None
    advantage: float | None = None
    tokens: int = Field(ge=0)
    ended: Ended
    calls: int | None = None
    refused_calls: int | None = None
    turns_in_all: int | None = None
    turns: list[Turn] | None = None

    def plain(self) -> dict[str, Any]:
        """As JSON values, without what the completion does not have."""
        return {name: value for name, value in self.model_dump().items() if value is not None}


def is_kept(step: int) -> bool:
    """Whether completions of a step, counted from 1, are kept; depends on nothing else, as a run may be continued."""
    return step % (1 << ((step - 1) // WHOLE_STEPS).bit_length()) == 0


def shortened(text: str, most: int = LONGEST) -> str:
    """A text without secrets, and without the middle of a long one: an answer stands at its end."""
    half = most // 2
    if len(text) <= most:
        return redact(text)
    seen = half + LONGEST_SECRET  # redaction takes quadratic time for some texts
    first, last = redact(text[:seen])[:half], redact(text[-seen:])[-half:]
    return f"{first} ... ({len(text) - 2 * half:,} characters) ... {last}"


def shortened_turns(turns: Sequence[Turn]) -> list[Turn]:
    """The first and the last turns of an episode, with shortened texts."""
    half = MOST_TURNS // 2
    kept = turns if len(turns) <= MOST_TURNS else [*turns[:half], *turns[-half:]]
    return [one.model_copy(update={"text": shortened(one.text, LONGEST_TURN)}) for one in kept]


def figures(one: Completion) -> str:
    """Rewards, advantage, length and end in a line: `reward 1.2 (strict 1, well_formed 1), advantage +0.87, ...`."""
    told = [f"reward {_short(one.reward)}"]
    if len(one.rewards) > 1 or list(one.rewards.values()) != [one.reward]:
        told[0] += f" ({', '.join(f'{name} {_short(value)}' for name, value in one.rewards.items())})"
    told += [f"advantage {one.advantage:{'+' if one.advantage else ''}.3g}"] if one.advantage is not None else []
    told += [_counted(one.tokens, "token"), ENDS[one.ended]]
    if one.turns_in_all is not None:  # the model's and the environment's take turns
        told += [_counted((one.turns_in_all + 1) // 2, "turn"), _counted(one.calls or 0, "call")]
    return ", ".join(told)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _short(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def as_markdown(one: Completion) -> str:
    """The completion as TensorBoard shows it."""
    said = "".join(f"\n\n{turn.by}:\n\n{_fenced(turn.text)}" for turn in one.turns or ())
    written = said or f"\n\nwritten:\n\n{_fenced(one.completion)}"
    expected = "" if one.expected is None else f"\n\nexpected:\n\n{_fenced(one.expected)}"
    return f"{figures(one)}\n\nprompt:\n\n{_fenced(one.prompt)}{written}{expected}"


def _fenced(text: str) -> str:
    """A text in a block of code, indented, so that nothing in it ends the block."""
    return "".join(f"    {line}\n" for line in text.splitlines() or [""]).rstrip("\n")


def _tell_nobody(step: int, completions: Sequence[Completion]) -> None:
    """A step without experiment trackers."""


class CompletionsLog:
    """An append-only log, which a resumed run cuts back to its checkpoint, as it does metrics.jsonl."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mirror: Callable[[int, Sequence[Completion]], None] = _tell_nobody
        self._newest: tuple[int, Sequence[Completion]] = (0, ())

    def append(self, step: int, completions: Sequence[Completion]) -> None:
        """Write the completions of a step at once, and pass them to `mirror`."""
        lines = "".join(f"{json.dumps(one.plain(), allow_nan=False)}\n" for one in completions)
        with named(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(lines)
        self._newest = step, completions
        self.mirror(step, completions)

    def take_newest(self) -> tuple[int, Sequence[Completion]]:
        """What was written since the last call, with its step; nothing where nothing was."""
        found, self._newest = self._newest, (0, ())
        return found

    def cut_after(self, step: int) -> None:
        """Remove what was kept after `step`, and what a kill left of a line."""
        if self.path.exists():
            kept = [line for line, entry in _lines(self.path) if isinstance(entry, Completion) and entry.step <= step]
            write_text(self.path, "".join(kept))


def read_completions(path: Path) -> tuple[list[Completion], list[str]]:
    """Completions of a file, in the order of steps, and what is wrong with it. Both are empty without a file."""
    if not path.exists():
        return [], []
    found = list(_lines(path))
    return [one for _, one in found if isinstance(one, Completion)], [one for _, one in found if isinstance(one, str)]


def _lines(path: Path) -> Iterator[tuple[str, Completion | str]]:
    """Each complete line, with its completion or what is wrong with it."""
    with open_regular(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            text = line.decode("utf-8", "replace")
            try:
                yield text, Completion.model_validate_json(text)
            except ValidationError as error:
                first = error.errors(include_url=False, include_input=False)[0]
                yield text, f"line {number}: {'.'.join(map(str, first['loc']))} {first['msg']}".replace(":  ", ": ")
