"""Figures of one split, from one pass over its examples or a sample of them. Memory does not grow with the set."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from nemotron_app.inspect.duplicates import Copies
from nemotron_app.inspect.examples import Example, Part, Split, examples_of, tokens_of

PLACES_KEPT = 3
OUTSIDE = "token ids outside the vocabulary"
NOTHING = "no token is trained on"
EVERYTHING = "every token is trained on"
SEQUENCE_NOTHING = "of one of its sequences nothing is trained on"


@dataclass
class Problems:
    """What is wrong with examples: how often, and where first."""

    counts: Counter[str] = field(default_factory=Counter)
    places: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, what: str, place: str) -> None:
        """Count one."""
        self.counts[what] += 1
        if len(self.places[what]) < PLACES_KEPT:
            self.places[what].append(place)


@dataclass
class SplitFigures:
    """What a split holds. `examples` and `tokens` are exact; the rest is of the `seen` examples.

    `lengths` counts tokens per sequence, or characters per question of JSON rows; it is exact where an index gives
    it. `row_lengths` counts tokens per packed row.
    """

    name: str
    parts: list[Part]
    examples: int
    tokens: int
    sample: str | None = None
    seen: int = 0
    seen_tokens: int = 0
    sequences: int = 0
    trained: int = 0
    lengths: Counter[int] = field(default_factory=Counter)
    row_lengths: Counter[int] = field(default_factory=Counter)
    agents: Counter[str] = field(default_factory=Counter)
    problems: Problems = field(default_factory=Problems)

    @property
    def trained_share(self) -> float:
        """Share of the seen tokens that a model is trained on."""
        return self.trained / self.seen_tokens if self.seen_tokens else 0.0

    def fill(self, pack_size: int | None) -> float | None:
        """Mean fill of the packed rows, exact."""
        return self.tokens / (self.examples * pack_size) if pack_size and self.examples else None


def measure(split: Split, budget: int, vocab_size: int | None, copies: Copies) -> SplitFigures:
    """Go through a split once. `copies` learns every sequence or question, to find the ones that occur again."""
    figures = SplitFigures(
        split.name, list(split.parts), examples_of(split), tokens_of(split), split.sample_note(budget)
    )
    for example in split.scan(budget):
        figures.seen += 1
        if example.agent:
            figures.agents[example.agent] += 1
        if example.problem:
            figures.problems.add(example.problem, example.place)
        if example.sequences:
            _measure_sequences(figures, example, vocab_size)
        elif example.question:
            figures.lengths[len(example.question)] += 1
        copies.add(example)
    figures.lengths = split.lengths() or figures.lengths
    return figures


def _measure_sequences(figures: SplitFigures, example: Example, vocab_size: int | None) -> None:
    tokens, trained, strange = 0, 0, False
    for sequence in example.sequences:
        size = len(sequence.ids)
        figures.sequences += 1
        figures.lengths[size] += 1
        tokens += size
        trained += sequence.trained_tokens
        strange |= bool(size) and _strange(sequence.ids, vocab_size)
    if strange:
        figures.problems.add(OUTSIDE, example.place)
    figures.seen_tokens += tokens
    figures.trained += trained
    if example.sequences[0].trained is not None:
        figures.row_lengths[tokens] += 1
        _check_mask(figures.problems.add, example, tokens, trained)


def _strange(ids: np.ndarray, vocab_size: int | None) -> bool:
    return int(ids.min()) < 0 or (vocab_size is not None and int(ids.max()) >= vocab_size)


def _check_mask(add: Callable[[str, str], None], example: Example, tokens: int, trained: int) -> None:
    if not trained:
        add(NOTHING, example.place)
    elif trained >= tokens - len(example.sequences):  # the first token of a sequence can never be trained on
        add(EVERYTHING, example.place)
    elif any(not sequence.trained_tokens for sequence in example.sequences):
        add(SEQUENCE_NOTHING, example.place)
