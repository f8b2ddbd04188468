"""Statistics of one split, from one pass over its examples or a sample of them, in constant memory."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from nemotron_app.inspect.duplicates import Copies
from nemotron_app.inspect.examples import DataFile, Example, Split

PLACES_KEPT = 3
OUTSIDE = "token ids outside the vocabulary"
NOTHING = "no token is trained on"
EVERYTHING = "every token is trained on"
SEQUENCE_NOTHING = "of one of its sequences nothing is trained on"


@dataclass
class Problems:
    """Problems of examples: how often each occurs, and where first."""

    counts: Counter[str] = field(default_factory=Counter)
    places: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, what: str, place: str) -> None:
        """Count one problem."""
        self.counts[what] += 1
        if len(self.places[what]) < PLACES_KEPT:
            self.places[what].append(place)


@dataclass
class SplitStatistics:
    """Statistics of a split. `examples` and `tokens` are exact; the rest covers the `seen` examples.

    `lengths` counts tokens per sequence, or characters per question of JSON rows; it is exact if there is an index.
    `row_lengths` counts tokens per packed row.
    """

    name: str
    files: list[DataFile]
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

    def fill(self, pack_size: int | None) -> float | None:
        """Exact mean fill of the packed rows."""
        return self.tokens / (self.examples * pack_size) if pack_size and self.examples else None


def measure(split: Split, budget: int, vocab_size: int | None, copies: Copies) -> SplitStatistics:
    """Measure a split in one pass. `copies` records every sequence or question, to find duplicates."""
    found = SplitStatistics(split.name, list(split.files), split.examples, split.tokens, split.sample_note(budget))
    for example in split.scan(budget):
        found.seen += 1
        if example.agent:
            found.agents[example.agent] += 1
        if example.problem:
            found.problems.add(example.problem, example.place)
        if example.sequences:
            _measure_sequences(found, example, vocab_size)
        elif example.question:
            found.lengths[len(example.question)] += 1
        copies.add(example)
    found.lengths = split.lengths() or found.lengths
    return found


def _measure_sequences(found: SplitStatistics, example: Example, vocab_size: int | None) -> None:
    is_outside, trained = False, [sequence.trained_tokens for sequence in example.sequences]
    for sequence in example.sequences:
        ids = sequence.ids
        found.lengths[len(ids)] += 1
        if len(ids):
            is_outside |= int(ids.min()) < 0 or (vocab_size is not None and int(ids.max()) >= vocab_size)
    if is_outside:
        found.problems.add(OUTSIDE, example.place)
    found.sequences += len(example.sequences)
    found.seen_tokens += example.tokens
    found.trained += sum(trained)
    if example.is_masked:
        found.row_lengths[example.tokens] += 1
        if not sum(trained):
            found.problems.add(NOTHING, example.place)
        elif sum(trained) >= example.tokens - len(trained):  # the first token of a sequence is never trained on
            found.problems.add(EVERYTHING, example.place)
        elif not all(trained):
            found.problems.add(SEQUENCE_NOTHING, example.place)
