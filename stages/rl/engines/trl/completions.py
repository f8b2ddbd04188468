"""Keep a few completions of each step for people, and tell early if a reward never fires, or if all answers are alike.

    of 128 completions, by reward      0 0 0 0 .2 .2 .2 1 1 ... 1.2
    kept with logger.completions=4     worst        typical     best, and another one

A process knows the texts of its own completions and the rewards of all; so all choose the same ones, and only these
texts are sent around.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from accelerate.utils import gather_object

from nemotron_data.gym.episodes import Episode, as_turns
from nemotron_shared.tracking.completions import (
    Completion,
    Ended,
    Turn,
    Which,
    shortened,
    shortened_turns,
)
from stages.rl.rewards import Judge

Place = tuple[int, int]
"""A batch of a step, and a completion's place in it."""


@dataclass(frozen=True)
class Answer:
    """One completion of this process; `episode` where it has several turns, of which `completion` is the last."""

    prompt: str
    completion: str
    expected: str | None
    tokens: int
    ended: Ended
    episode: Episode | None = None

    @property
    def written(self) -> str:
        """What the model wrote: the text, or of an episode the ids of the model's tokens in all turns."""
        if self.episode is None:
            return self.completion
        return str([token for token, own in zip(self.episode.ids, self.episode.own, strict=True) if own])


@dataclass(frozen=True)
class Compared:
    """What tells a completion from others: digests of what was written, of its prompt, and of the expected answer."""

    written: bytes
    prompt: bytes
    expected: bytes | None

    @classmethod
    def of(cls, answer: Answer) -> "Compared":
        """Of one completion."""
        expected = None if answer.expected is None else _digest(answer.expected)
        return cls(_digest(answer.written), _digest(answer.prompt), expected)


def _digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=16).digest()


@dataclass(frozen=True)
class Batch:
    """What was sampled at once: the answers of this process, and figures of all processes in the batch's order.

    Attributes:
        rows: places of the answers in the batch.
        rewards: (completions, rewards) float64; NaN where an environment failed.
        sums: their weighted sums with penalties, (completions,).
        advantages: (completions,).
    """

    rows: Sequence[int]
    answers: Sequence[Answer]
    rewards: np.ndarray
    sums: np.ndarray
    advantages: np.ndarray


def chosen(sums: np.ndarray, advantages: np.ndarray, most: int) -> dict[int, Which]:
    """Places of the completions to keep, the best first: best, worst and typical, then others between them.

    Of equal rewards, a higher advantage is better: a right answer among wrong ones says more than one among right ones.

    Args:
        sums: rewards (completions,); NaN is kept only if all are NaN.
        advantages: (completions,).
    """
    there = (~np.isnan(sums)).nonzero()[0] if not np.isnan(sums).all() else np.arange(len(sums))
    order = there[np.lexsort((-np.nan_to_num(advantages[there]), -np.nan_to_num(sums[there])))]
    last = len(order) - 1
    named: dict[int, Which] = {last // 2: "typical", last: "worst", 0: "best"}
    between = np.linspace(0, last, max(most, 1)).round().astype(int).tolist()
    ranks = list(dict.fromkeys([0, last, last // 2, *between]))[:most]
    return {int(order[rank]): named.get(rank, "other") for rank in sorted(ranks)}


def kept(step: int, batches: Sequence[Batch], names: Sequence[str], most: int, tokenizer: Any) -> list[Completion]:
    """The chosen completions of a step, on every process; collective.

    Args:
        names: of the rewards.
        tokenizer: decodes turns of episodes.
    """
    places: list[Place] = [(number, row) for number, batch in enumerate(batches) for row in range(len(batch.sums))]
    own = {
        (number, row): answer
        for number, batch in enumerate(batches)
        for row, answer in zip(batch.rows, batch.answers, strict=True)
    }
    sums, advantages = (np.concatenate([getattr(one, name) for one in batches]) for name in ("sums", "advantages"))
    found = []
    for rank, (index, which) in enumerate(chosen(sums, advantages, most).items()):
        number, row = places[index]
        if answer := own.get((number, row)):
            found.append((rank, _described(step, which, answer, batches[number], row, names, tokenizer)))
    return [one for _, one in sorted(gather_object(found), key=lambda pair: pair[0])]


def _described(
    step: int, which: Which, answer: Answer, batch: Batch, row: int, names: Sequence[str], tokenizer: Any
) -> Completion:
    return Completion(
        step=step,
        which=which,
        prompt=shortened(answer.prompt),
        completion=shortened(answer.completion),
        expected=None if answer.expected is None else shortened(answer.expected),
        rewards={name: _number(value) for name, value in zip(names, batch.rewards[row], strict=True)},
        reward=_number(batch.sums[row]),
        advantage=_number(batch.advantages[row]),
        tokens=answer.tokens,
        ended=answer.ended,
        **({} if answer.episode is None else _told(answer.episode, tokenizer)),
    )


def _told(episode: Episode, tokenizer: Any) -> dict[str, Any]:
    """What an episode has besides an answer: turns and calls."""
    turns = [Turn.model_validate(one) for one in as_turns(episode, tokenizer) if one["by"] != "prompt"]
    counts = {name: episode.counts[name] for name in ("calls", "refused_calls")}
    return {"turns": shortened_turns(turns), "turns_in_all": len(turns), **counts}


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


class Silence:
    """Tells once which rewards were 0 for every completion of the first steps.

    It waits for `FEWEST` completions or `STEPS` steps, whichever come first: a weak model is often wrong a few times.

    Args:
        judges: rewards with a weight other than 0.
        say: prints a line.
        run: name of the run's folder.
    """

    FEWEST, STEPS = 16, 3
    SHOWN = 300

    def __init__(self, judges: Sequence[Judge], say: Callable[[str], None], run: str = "") -> None:
        self._judges, self._say, self._run = judges, say, run
        self._fired = np.zeros(len(judges), dtype=bool)
        self._seen = self._steps = 0
        self._done = False

    def hear(self, rewards: np.ndarray, example: Completion | None, cut: float) -> None:
        """Count the rewards of a step, and say at the end of the first ones what was expected and what was written.

        Args:
            rewards: (completions, rewards), of all processes.
            example: a completion of the step, if any may be shown.
            cut: share of the completions that were cut.
        """
        if self._done:
            return
        judged = rewards[~np.isnan(rewards).any(1)]
        self._fired |= (judged != 0).any(0)
        self._seen, self._steps = self._seen + len(judged), self._steps + 1
        self._done = self._seen >= self.FEWEST or self._steps == self.STEPS
        silent = [judge for judge, fired in zip(self._judges, self._fired, strict=True) if not fired]
        if not (self._done and self._seen and silent):
            return
        of = "the first step" if self._steps == 1 else f"the first {self._steps} steps"
        self._say(f"WARNING: {_listed([judge.name for judge in silent])} 0 for all {self._seen:,} completions of {of}")
        for judge in silent:
            if judge.rule:
                self._say(f"  {judge.name}: {judge.rule}")
        if example is not None and example.expected is not None:
            self._say(f"  expected: {_in_one_line(example.expected, self.SHOWN)}")
        if example is not None:
            self._say(f"  written:  {_in_one_line(example.completion, self.SHOWN) or '(nothing)'}")
        if example is not None and self._run:
            self._say(f"  more of them: nemotron runs show {self._run}")
        if cut > 0.5:
            self._say(f"  {cut:.0%} of them were cut at the longest length (grpo.max_new_tokens)")


class Likeness:
    """Tells once if a model has come to answer its prompts alike: `STEPS` steps in a row had fewer different answers
    than half of their prompts, or of their different expected answers where those are fewer, as with choices A to D.

    With one or two prompts a step, or expected answers such as yes and no, there is always half of them.

    Args:
        say: prints a line.
        has_penalty: whether a KL penalty holds the model already, and need not be advised.
    """

    STEPS = 5

    def __init__(self, say: Callable[[str], None], *, has_penalty: bool = False) -> None:
        self._say, self._advice, self._alike, self._told = say, steadier(has_penalty), 0, False

    def hear(self, step: int, completions: Sequence[Compared]) -> None:
        """Count the different answers among the completions of a step, those of all processes."""
        different, prompts = (len({getattr(one, name) for one in completions}) for name in ("written", "prompt"))
        expected = {one.expected for one in completions}
        wanted = prompts if None in expected else min(prompts, len(expected))
        self._alike = self._alike + 1 if 2 * different < wanted else 0
        if self._alike != self.STEPS or self._told:
            return
        self._told = True
        answers = "1 different answer" if different == 1 else f"{different:,} different answers"
        self._say(
            f"WARNING: step {step}: the model answers its prompts alike: {answers} among {len(completions):,} "
            f"completions of {prompts:,} prompts, and as few in the {self.STEPS - 1} steps before; {self._advice}, or "
            "a reward that one answer to every question does not earn; questions that have so few answers are harmless"
        )


def steadier(has_penalty: bool) -> str:
    """What holds a model near its beginning, without the KL penalty where there is one."""
    return "a smaller optimizer.lr helps" + ("" if has_penalty else ", or grpo.reference_policy_kl_penalty=0.01")


def _listed(names: Sequence[str]) -> str:
    return f"the reward '{names[0]}' was" if len(names) == 1 else f"the rewards {', '.join(map(repr, names))} were"


def _in_one_line(text: str, most: int) -> str:
    shown = " ".join(text.split())
    return shown if len(shown) <= most else f"{shown[: most // 2]} ... {shown[-(most // 2) :]}"
