"""The common form of all prepared sets: splits that hold examples.

pretraining   an example is one document: a single sequence, trained on completely
SFT           an example is one packed row: several sequences, with the loss on the assistant's tokens
RL, eval      an example is one JSON row: prompt turns, and facts such as the expected answer
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TokenSequence:
    """1-D token ids, and for each whether it counts in the loss. `trained` None means all of them."""

    ids: np.ndarray
    trained: np.ndarray | None = None

    @property
    def trained_tokens(self) -> int:
        """Number of tokens in the loss."""
        return len(self.ids) if self.trained is None else int(self.trained.sum())


@dataclass(frozen=True)
class Example:
    """One document, packed row or JSON row. `place` is its location; `problem` describes what is wrong with it."""

    split: str
    index: int
    place: str
    sequences: Sequence[TokenSequence] = ()
    turns: Sequence[tuple[str, str]] = ()
    facts: Sequence[tuple[str, str]] = ()
    agent: str | None = None
    problem: str | None = None

    @property
    def question(self) -> str:
        """The last user turn of a JSON row, or else its first turn or fact."""
        asked = [text for role, text in self.turns if role == "user"]
        others = [text for _, text in (*self.turns, *self.facts)]
        return asked[-1] if asked else next(iter(others), "")

    @property
    def tokens(self) -> int:
        """Number of tokens in all sequences."""
        return sum(len(sequence.ids) for sequence in self.sequences)

    @property
    def is_masked(self) -> bool:
        """Whether a loss mask selects the trained tokens."""
        return any(sequence.trained is not None for sequence in self.sequences)


@dataclass(frozen=True)
class DataFile:
    """One file of a split: its weight in the blend, if any, and its size; JSON rows have no tokens."""

    data_set: str
    weight: float | None
    examples: int
    tokens: int


class Split(ABC):
    """A named split of a prepared set, and its files in order."""

    name: str
    files: Sequence[DataFile]

    @property
    def examples(self) -> int:
        """Number of documents or rows."""
        return sum(file.examples for file in self.files)

    @property
    def tokens(self) -> int:
        """Number of tokens; 0 for text rows."""
        return sum(file.tokens for file in self.files)

    def lengths(self) -> Counter[int] | None:
        """Number of sequences by length in tokens, if an index provides it without reading the data."""
        return None

    @abstractmethod
    def at(self, indices: Sequence[int]) -> list[Example]:
        """The examples with these indices, in this order."""

    @abstractmethod
    def scan(self, budget: int) -> Iterator[Example]:
        """All examples, or a sample of about `budget` tokens."""

    @abstractmethod
    def sample_note(self, budget: int) -> str | None:
        """How `scan` samples; None if it returns everything."""
