"""Completions of a training by RL, for people: what `nemotron runs show` and `nemotron report` print.

step 16: best
  reward 1, advantage +0.354, 15 tokens, stopped
  prompt    user: How much is 7+2-5+1?
  written   <think>9-5+1=4+1=5</think>5
  expected  5
"""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nemotron_app.training_log import folder_still_of, summed_up
from nemotron_app.wording import plain_turns
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.completions import FILE, Completion, figures, read_completions

MOST_LINES = 6
"""Lines of a text that are shown; `--json` and the page have all that was kept."""
LABEL = 10


@dataclass(frozen=True)
class Kept:
    """Completions of a training by step. `folder` is the run's; `problem` says what of the file is damaged."""

    folder: Path
    steps: dict[int, list[Completion]]
    problem: str | None = None


def kept_in(folder: Path) -> Kept:
    """Read those of a run's folder, which may still be growing."""
    found, damage = read_completions(folder / FILE)
    steps: dict[int, list[Completion]] = {}
    for one in found:
        steps.setdefault(one.step, []).append(one)
    return Kept(folder, steps, f"{folder / FILE} is damaged: {summed_up(damage)}" if damage else None)


def kept_of(artifact: Artifact, store: Store) -> Kept | None:
    """Read those of a finished training; None if its run's folder is gone, or has been used again since."""
    try:
        return kept_in(folder_still_of(artifact, store))
    except UserError:
        return None


def lines_of(one: Completion, width: int) -> Iterator[str]:
    """A completion in lines of at most `width` characters, apart from words that are longer."""
    yield f"step {one.step}: {one.which}"
    yield from textwrap.wrap(figures(one), width, initial_indent="  ", subsequent_indent="    ")
    yield from _labelled("prompt", plain_turns(one.prompt), width)
    if one.turns:
        for turn in one.turns:
            yield from _labelled(turn.by, turn.text, width)
    else:
        yield from _labelled("written", one.completion, width)
    if one.expected is not None:
        yield from _labelled("expected", one.expected, width)


def _labelled(label: str, text: str, width: int) -> Iterator[str]:
    indent = " " * (LABEL + 2)
    wrapped = [
        part
        for line in text.strip().splitlines() or ["(nothing)"]
        for part in textwrap.wrap(line, max(20, width - len(indent)), break_on_hyphens=False) or [""]
    ]
    more = len(wrapped) - MOST_LINES
    shown = wrapped if more <= 1 else [*wrapped[: MOST_LINES - 1], f"... ({more + 1} more lines)"]
    for number, line in enumerate(shown):
        yield f"{f'  {label:<{LABEL}}' if number == 0 else indent}{line}".rstrip()


def in_one_line(text: str, most: int) -> str:
    """A text without line breaks, cut in the middle."""
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[: most // 2 - 2]} … {flat[-(most // 2 - 1) :]}"


def without_shared(texts: Sequence[str]) -> list[str]:
    """The texts without the words that all of them begin or end with: `… 9-8+7-3. …` of questions in one wording."""
    if len(set(texts)) < 2:
        return list(texts)
    words = [text.split() for text in texts]
    first = _shared_words(words)
    rest = [one[first:] for one in words]
    last = _shared_words([one[::-1] for one in rest])
    begin, end = ["…"] if first else [], ["…"] if last else []
    return [" ".join([*begin, *one[: len(one) - last], *end]) for one in rest]


def _shared_words(texts: Sequence[Sequence[str]]) -> int:
    """Words that all texts begin with."""
    places = enumerate(zip(*texts, strict=False))
    return next((at for at, words in places if len(set(words)) > 1), min(map(len, texts)))


def spread(steps: Sequence[int], most: int) -> list[int]:
    """The first and the last of some steps, and others evenly between them."""
    last = len(steps) - 1
    places = {round(number * last / max(1, most - 1)) for number in range(most)} if last >= most else range(last + 1)
    return [steps[place] for place in sorted(places)]
