"""What every kind of prepared set is read into: splits that hold examples.

pretraining   an example is one document: one sequence, all of it trained on
SFT           an example is one packed row: several sequences, of which the assistant's tokens are trained on
RL, eval      an example is one JSON row: turns of a prompt and facts such as the expected answer
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from nemotron_data.split import normalise_key


@dataclass(frozen=True)
class TokenSequence:
    """1-D ids, and for each id whether a model is trained to predict it. `trained` None means: all of them."""

    ids: np.ndarray
    trained: np.ndarray | None = None

    @property
    def trained_tokens(self) -> int:
        """How many tokens count in the loss."""
        return len(self.ids) if self.trained is None else int(self.trained.sum())


@dataclass(frozen=True)
class Example:
    """One document, packed row or JSON row. `place` says where it lies; `problem` what is wrong with it."""

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
        """The last user turn of a JSON row; else its first turn or fact."""
        asked = [text for role, text in self.turns if role == "user"]
        others = [text for _, text in (*self.turns, *self.facts)]
        return asked[-1] if asked else next(iter(others), "")


@dataclass(frozen=True)
class Part:
    """One file of a split: its weight in the blend where it has one, and what it holds."""

    data_set: str
    weight: float | None
    examples: int
    tokens: int | None


class Split(Protocol):
    """A named part of a prepared set."""

    name: str

    @property
    def parts(self) -> Sequence[Part]:
        """Its files, in order."""
        ...

    def lengths(self) -> Counter[int] | None:
        """Tokens of each sequence, where an index tells them without reading the data."""
        ...

    def at(self, indices: Sequence[int]) -> list[Example]:
        """The examples with these numbers, in this order."""
        ...

    def scan(self, budget: int) -> Iterator[Example]:
        """All examples, or a share of them that holds about `budget` tokens."""
        ...

    def sample_note(self, budget: int) -> str | None:
        """How `scan` chooses; None where it leaves nothing out."""
        ...


def examples_of(split: Split) -> int:
    """Documents or rows of a split."""
    return sum(part.examples for part in split.parts)


def tokens_of(split: Split) -> int:
    """Tokens of a split; 0 for text rows."""
    return sum(part.tokens or 0 for part in split.parts)


def digest_of_ids(ids: np.ndarray) -> int:
    """64 bits that are equal for equal ids, whatever integers they are stored as."""
    return _digest(np.ascontiguousarray(ids, np.int64).tobytes())


def digest_of_text(text: str) -> int:
    """64 bits that are equal for texts that differ in case and white space only."""
    return _digest(normalise_key(text).encode("utf-8", "surrogatepass"))


def _digest(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
