"""Find duplicates within a prepared set, and held-out items that also occur in training.

Compares 64-bit digests: of the token ids of each document or packed sequence, or of a row's question, ignoring case
and whitespace. For packed sequences the prompt (everything before the first trained token) is also compared on its
own, because the same question with another answer leaks as well.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from nemotron_app.inspect.examples import Example, Split
from nemotron_app.inspect.pieces import Decoder
from nemotron_data.held_out import find_overlap
from nemotron_data.split import normalise_key

TRAIN = "train"
MOST_ITEMS = 1_000_000  # digests kept per split
CANDIDATES = 200
EXAMPLES = 5
TEXT_TOKENS = 60
TEXT_CHARACTERS = 240


@dataclass(frozen=True)
class Overlap:
    """`found` of `compared` distinct items of a held-out split occur in training; `how` is the kind of match."""

    split: str
    what: str
    found: int
    compared: int
    examples: list[str]
    how: str = "in the training data"

    @property
    def sentence(self) -> str:
        """`2 of 31 questions of valid occur in the training data`."""
        verb = "occur" if self.found > 1 else "occurs"
        count = f"{self.found:,}" if self.found else "none"
        return f"{count} of {self.compared:,} {self.what} of {self.split} {verb} {self.how}"


@dataclass
class Copies:
    """Collects digests split by split, at most `MOST_ITEMS` of each to bound memory."""

    decoder: Decoder
    counts: defaultdict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    prompts: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    kept: Counter[str] = field(default_factory=Counter)
    left_out: int = 0
    _first: dict[int, str] = field(default_factory=dict)
    _again: dict[int, tuple[str, list[str]]] = field(default_factory=dict)

    def add(self, example: Example) -> None:
        """Add the sequences, or the question, of one example."""
        if not example.sequences and example.question:
            self._learn(example, digest_of_text(example.question), example.question)
        for sequence in example.sequences:
            if not len(sequence.ids):
                continue
            has_room = self._learn(example, digest_of_ids(sequence.ids), sequence.ids[:TEXT_TOKENS])
            if has_room and sequence.trained is not None and sequence.trained.any():
                self.prompts[example.split].add(digest_of_ids(sequence.ids[: int(sequence.trained.argmax())]))

    def _learn(self, example: Example, digest: int, content: np.ndarray | str) -> bool:
        """Count one item, and keep its text if it was seen before; False when the table is full."""
        if self.kept[example.split] >= MOST_ITEMS:
            self.left_out += 1
            return False
        self.kept[example.split] += 1
        self.counts[example.split][digest] += 1
        if digest not in self._first:
            self._first[digest] = example.place
        elif digest in self._again:
            self._again[digest][1][1:] = [example.place]
        elif len(self._again) < CANDIDATES:
            text = content if isinstance(content, str) else self.decoder.text(content.tolist())
            text = text if len(text) <= TEXT_CHARACTERS else text[: TEXT_CHARACTERS - 1] + "…"
            self._again[digest] = (text, [self._first[digest], example.place])
        return True

    def within(self) -> dict[str, int]:
        """Number of repeated items in each split."""
        return {split: counts.total() - len(counts) for split, counts in self.counts.items()}

    def most_common(self) -> list[tuple[int, str, list[str]]]:
        """The most frequent items over all splits: count, text, first and last place."""
        found = [
            (sum(counts[digest] for counts in self.counts.values()), text, list(dict.fromkeys(places)))
            for digest, (text, places) in self._again.items()
        ]
        return sorted(found, key=lambda item: -item[0])[:EXAMPLES]

    def across(self, what: str) -> list[Overlap]:
        """Held-out items that occur in training; empty without a training split."""
        if TRAIN not in self.counts:
            return []
        found = []
        for split in self.counts.keys() - {TRAIN}:
            shared = self.counts[split].keys() & self.counts[TRAIN].keys()
            texts = [self._again[digest][0] for digest in shared if digest in self._again][:EXAMPLES]
            found.append(Overlap(split, what, len(shared), len(self.counts[split]), texts))
            if self.prompts[split]:
                same = len(self.prompts[split] & self.prompts[TRAIN])
                found.append(Overlap(split, "prompts", same, len(self.prompts[split]), []))
        return sorted(found, key=lambda overlap: (overlap.split, overlap.what))


def occurrences(keys: Sequence[str], split: Split, budget: int, decoder: Decoder, name: str) -> Overlap:
    """Search for held-out keys in the decoded sequences, or the turns, of a split."""

    def texts() -> Iterator[str]:
        for example in split.scan(budget):
            yield from (decoder.text(sequence.ids.tolist()) for sequence in example.sequences)
            yield from (text for _, text in example.turns)

    hits = find_overlap(keys, texts())
    shown = [f"{key}: {hit.count} times" for key, hit in hits.items()][:EXAMPLES]
    return Overlap(name, "questions", len(hits), len(set(keys)), shown, "inside the training text")


def digest_of_ids(ids: np.ndarray) -> int:
    """64-bit digest of token ids, independent of their integer type."""
    return _digest(np.ascontiguousarray(ids, np.int64).tobytes())


def digest_of_text(text: str) -> int:
    """64-bit digest of a text, ignoring case and whitespace."""
    return _digest(normalise_key(text).encode("utf-8", "surrogatepass"))


def _digest(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
