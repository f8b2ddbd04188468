"""Find environments whose answers are not a function of the row and the model's turns.

    differing(episodes)  ->  {"blackjack": ("Your hand: 10, 7", "Your hand: 3, 9")}

A resumed training plays its steps again, and repeats its bytes only with such a function. Equal answers prove nothing;
different ones to the same turns of the same row show that there is no such function. The episodes of a group begin with
one row, so a training compares them without a further request.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby, takewhile
from operator import itemgetter
from typing import Any

from nemotron_data.gym.episodes import Episode

SHOWN, SHOWN_BEFORE = 60, 20
History = tuple[tuple[int, ...], ...]


def differing(episodes: Iterable[Episode], tokenizer: Any) -> dict[str, tuple[str, str]]:
    """By environment, the first two different answers to the same turns.

    Args:
        episodes: those with the same `asked` are compared; failed ones are left out.
    """
    known: dict[tuple[int, History], Any] = {}
    found: dict[str, tuple[str, str]] = {}
    for one in episodes:
        if one.ended == "failed":
            continue
        for history, answer in _exchanges(one):
            before = known.setdefault((id(one.asked), history), answer)
            if before != answer:
                texts = _around_difference(_as_text(before, tokenizer), _as_text(answer, tokenizer))
                found.setdefault(one.asked.agent.environment, texts)
                break
    return found


def _exchanges(episode: Episode) -> Iterator[tuple[History, Any]]:
    """Answers of the environment with all turns before them: the prompt, its turns, and the reward."""
    history: History = ()
    yield history, tuple(episode.prompt)
    for own, pairs in groupby(zip(episode.own, episode.ids, strict=True), key=itemgetter(0)):
        ids = tuple(token for _, token in pairs)
        if own:
            history = (*history, ids)
        else:
            yield history, ids
    yield (*history, ()), episode.reward


def _as_text(answer: Any, tokenizer: Any) -> str:
    """An answer for people, in one line."""
    text = tokenizer.decode(list(answer)) if isinstance(answer, tuple) else f"reward {answer:g}"
    return " ".join(text.split())


def _around_difference(one: str, other: str) -> tuple[str, str]:
    """The parts of two texts where they begin to differ."""
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    first = max(0, alike - SHOWN_BEFORE)
    one, other = (
        "..." * (first > 0) + text[first : first + SHOWN] + "..." * (len(text) > first + SHOWN) for text in (one, other)
    )
    return one, other
