"""Inspect a prepared set: its tokens as text, statistics, duplicates, overlap, and warnings about all of these.

found = inspect_data("super3-sft-data:latest", Store.open(None), Options(rows=3))
print(found.summary()["splits"]["train"]["tokens"], found.warnings)
"""

import hashlib
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nemotron_app.inspect.find import OTHER_NAMES, REJECTED, SPLITS, PreparedSet, Reason, find_set, read_refused
from nemotron_app.inspect.splits import DataFile, Example, LineSplit, Split, TokenSequence
from nemotron_data.held_out import find_overlap
from nemotron_data.split import normalise_key
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_shared.artifacts.store import Store
from nemotron_shared.stages import DEFAULT_FAMILY
from nemotron_shared.system.errors import UserError, did_you_mean

# Token ids as readable text: special tokens and invisible characters are shown.
#
#     [1, 301, 17, 2]  ->  Piece("<|im_start|>", special), Piece("user"), Piece("↵\n"), ...
#
# A character whose bytes span several tokens becomes a single piece.

Kind = Literal["text", "special", "bad", "id"]
REPLACEMENT = "\ufffd"
LONGEST_CHARACTER = 4  # bytes of a character in UTF-8, and so the most tokens that it can span
# Terminal escapes, bidi controls and joiners would change how the text is displayed.
UNSEEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


@dataclass(frozen=True)
class Piece:
    """Visible text and its token ids. `bad` marks ids unknown to the tokenizer."""

    text: str
    ids: tuple[int, ...]
    kind: Kind
    trained: bool


def visible(text: str, newline: str = "\n") -> str:
    """Escape control and formatting characters in a text; `newline` replaces line breaks."""

    def written_out(found: re.Match[str]) -> str:
        code = ord(found[0])
        return "→\t" if found[0] == "\t" else chr(0x2400 + code) if code < 0x20 else f"\\u{code:04x}"

    return UNSEEN.sub(written_out, text).replace("\n", newline)


class Decoder:
    """Decodes with a tokenizer folder; without one it shows ids as numbers."""

    def __init__(self, folder: Path | None, vocab_size: int | None = None) -> None:
        self.folder = folder
        self._vocab_size = vocab_size
        self._tokenizer = TokenizerFolder(folder).tokenizer if folder else None

    @cached_property
    def vocab_size(self) -> int | None:
        """Largest tokenizer id plus one; without a tokenizer, the size that the set declares."""
        if self._tokenizer is None:
            return self._vocab_size
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def special(self) -> dict[int, str]:
        """Special tokens by id."""
        if self._tokenizer is None:
            return {}
        added = self._tokenizer.get_added_tokens_decoder()
        return {number: token.content for number, token in added.items() if token.special}

    def text(self, ids: Sequence[int]) -> str:
        """Plain text with special tokens; numbers without a tokenizer."""
        if self._tokenizer is None:
            return " ".join(map(str, ids))
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def pieces(self, sequence: TokenSequence, limit: int) -> list[Piece]:
        """Decode the first `limit` tokens of a sequence."""
        ids = [int(number) for number in sequence.ids[:limit]]
        flags = [True] * len(ids) if sequence.trained is None else [bool(flag) for flag in sequence.trained[:limit]]
        found: list[Piece] = []
        start = 0
        while start < len(ids):
            text, kind, size = self._next(ids, start)
            found.append(Piece(text, tuple(ids[start : start + size]), kind, flags[start + size - 1]))
            start += size
        return found

    def _next(self, ids: list[int], start: int) -> tuple[str, Kind, int]:
        number = ids[start]
        if self._tokenizer is None:
            return f"{number} ", "id", 1
        if number in self.special:
            return self.special[number], "special", 1
        if not self._known(number):
            return f"<id {number}>", "bad", 1
        size = 1
        while True:
            text = self._text_after(ids[start - 1 : start] if start else [], ids[start : start + size])
            following = ids[start + size : start + size + 1]
            if REPLACEMENT not in text or size == LONGEST_CHARACTER or not following:
                break
            if following[0] in self.special or not self._known(following[0]):
                break
            size += 1
        # Bytes that still form no character become a one-token piece, so that decoding resumes after them.
        return (text, "text", size) if REPLACEMENT not in text else (self.text([number]), "text", 1)

    def _known(self, number: int) -> bool:
        # The tokenizer's own lookup overflows on negative ids.
        return number >= 0 and self._tokenizer is not None and self._tokenizer.id_to_token(number) is not None

    def _text_after(self, before: list[int], ids: list[int]) -> str:
        """Text of ids in context: some tokenizers drop the space before the first token of a text."""
        before = [number for number in before if number not in self.special and self._known(number)]
        whole, head = self.text([*before, *ids]), self.text(before)
        fits = before and whole.startswith(head) and not head.endswith(REPLACEMENT)
        return whole[len(head) :] if fits else self.text(ids)


# Find duplicates within a prepared set, and held-out items that also occur in training.
#
# Compares 64-bit digests: of the token ids of each document or packed sequence, or of a row's question, ignoring case
# and whitespace. For packed sequences the prompt (everything before the first trained token) is also compared on its
# own, because the same question with another answer leaks as well.

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
            self._learn(
                example, _digest(normalise_key(example.question).encode("utf-8", "surrogatepass")), example.question
            )
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


def _digest(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


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
    `answers` counts characters per answer of a pair, by field; `row_lengths` counts tokens per packed row.
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
    answers: defaultdict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
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
        for name, answer in example.answers.items():
            found.answers[name][len(answer)] += 1
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


LEAST_FILL = 0.7
FEW_ROWS = 10
MEANING = {
    EVERYTHING: "the loss mask is all ones, so the model learns to write the user's part too",
    NOTHING: "the loss mask is all zeros, so they cost time and teach nothing",
    OUTSIDE: "this is not the tokenizer that the data was made with",
}


@dataclass(frozen=True)
class BlendShare:
    """One data set of a split: its share of the requested weights and of the tokens on disk, each from 0 to 1."""

    split: str
    data_set: str
    asked: float
    on_disk: float
    documents: int
    tokens: int


def blend_shares(splits: Sequence[SplitStatistics]) -> list[BlendShare]:
    """Requested and actual weights by data set, with its shards combined; empty if nothing is blended."""
    found = []
    for split in splits:
        names = list(dict.fromkeys(file.data_set for file in split.files))
        weights = sum(file.weight or 0.0 for file in split.files)
        if len(names) < 2 or not weights:
            continue
        for name in names:
            files = [file for file in split.files if file.data_set == name]
            tokens = sum(file.tokens for file in files)
            asked = sum(file.weight or 0.0 for file in files) / weights
            documents = sum(file.examples for file in files)
            found.append(BlendShare(split.name, name, asked, tokens / max(1, split.tokens), documents, tokens))
    return found


def warnings_of(
    prepared: PreparedSet, splits: Sequence[SplitStatistics], overlaps: Sequence[Overlap], decoder: Decoder
) -> list[str]:
    """All warnings, the most general first."""
    found = [f"differs from its manifest: {difference}" for difference in prepared.differences]
    if prepared.kind != "lines" and decoder.folder is None:
        found.append("the data comes without a tokenizer, so ids are shown as numbers; give --tokenizer FOLDER")
    named = {split.name for split in splits}
    wanted = named
    if prepared.is_whole:  # evaluations have a single split, RL sets at least two
        wanted = named | ({"valid"} if "train" in named else set()) if prepared.kind == "lines" else set(SPLITS)
    if "train" in wanted:  # nothing reads the test split of a training's data, which may be left out
        wanted = wanted - {"test"}
    holding = {split.name for split in splits if split.examples}
    found += [f"the split '{name}' is empty" for name in SPLITS if name in wanted - holding]
    unit = "documents" if prepared.kind == "documents" else "rows"
    for split in splits:
        for what, count in split.problems.counts.items():
            meaning = f"; {MEANING[what]}" if what in MEANING else ""
            places = ", ".join(split.problems.places[what])
            found.append(f"{split.name}: {count:,} of {split.seen:,} {unit}: {what}{meaning} (first: {places})")
        empty = split.lengths[0]
        if empty and "a document without tokens" not in split.problems.counts:
            found.append(f"{split.name}: {empty:,} sequences without tokens")
        pack_size, fill = prepared.pack_size, split.fill(prepared.pack_size)
        over = sum(count for size, count in split.row_lengths.items() if pack_size and size > pack_size)
        if over:
            found.append(
                f"{split.name}: {over:,} of {split.seen:,} rows are longer than the pack size of {pack_size:,} "
                f"(longest: {max(split.row_lengths):,})"
            )
        if fill is not None and fill < LEAST_FILL and split.name == "train" and split.examples >= FEW_ROWS:
            found.append(f"{split.name}: packed rows are only {fill:.0%} full; the rest of each step is wasted")
    return found + [overlap.sentence for overlap in overlaps if overlap.found]


BUDGET = 20_000_000
ITEMS = {"documents": "documents", "packs": "sequences", "lines": "questions"}


@dataclass(frozen=True)
class Options:
    """What to show, and how thoroughly to inspect.

    Args:
        split: the split to show examples of; None is the first.
        rows: how many examples to show.
        row: show this one instead, counted from 0.
        shuffle: seed for choosing examples; None shows the first ones.
        budget: tokens to read per split for statistics that no index provides; larger sets are sampled.
        against: a held-out set whose questions are searched for in the training text.
    """

    split: str | None = None
    rows: int = 5
    row: int | None = None
    shuffle: int | None = None
    budget: int = BUDGET
    against: str | None = None
    tokenizer: Path | None = None
    family: str = DEFAULT_FAMILY


@dataclass(frozen=True)
class Inspection:
    """Everything that the page and the terminal show; `shown` names the split that the examples are from."""

    prepared: PreparedSet
    decoder: Decoder
    splits: list[SplitStatistics]
    examples: list[Example]
    shown: str
    refused: list[Reason] | None
    copies: Copies
    overlaps: list[Overlap]
    warnings: list[str]

    @property
    def items(self) -> str:
        """The unit that is compared to find duplicates."""
        return ITEMS[self.prepared.kind]

    def summary(self) -> dict[str, Any]:
        """The statistics as plain JSON values."""
        splits = {}
        for split in self.splits:
            splits[split.name] = {
                "examples": split.examples,
                "tokens": split.tokens,
                "seen": split.seen,
                "sample": split.sample,
                "sequences_seen": split.sequences,
                "tokens_seen": split.seen_tokens,
                "trained_tokens_seen": split.trained,
                "fill": split.fill(self.prepared.pack_size),
                "shortest": min(split.lengths, default=None),
                "longest": max(split.lengths, default=None),
                "agents": split.agents,
                "problems": split.problems.counts,
            }
        overlaps = [asdict(overlap) for overlap in self.overlaps]
        return {
            "title": self.prepared.title,
            "path": str(self.prepared.path),
            "kind": self.prepared.kind,
            "pack_size": self.prepared.pack_size,
            "vocab_size": self.decoder.vocab_size,
            "splits": splits,
            "blend": [asdict(share) for share in blend_shares(self.splits)],
            "rejected": {reason.reason: reason.count for reason in self.refused or []},
            "duplicates": {
                "of": self.items,
                "compared": self.copies.kept.total(),
                "extra_copies": self.copies.within(),
            },
            "overlap": [{key: value for key, value in one.items() if key != "examples"} for one in overlaps],
            "warnings": self.warnings,
        }


def inspect_data(target: str, store: Store, options: Options | None = None) -> Inspection:
    """Inspect a prepared set.

    Raises:
        UserError: not found, damaged, or without the requested split or row.
    """
    options = options or Options()
    prepared = find_set(target, store, options.family, options.tokenizer)
    by_name = {split.name: split for split in prepared.splits}
    if not by_name:
        raise UserError(f"{prepared.path}: holds no documents", "run data preparation again with --force")
    wanted = options.split or next(iter(by_name))
    wanted = OTHER_NAMES.get(wanted, wanted)
    if wanted not in by_name:
        known = f"it has: {', '.join(by_name)}"
        raise UserError(f"{prepared.title} has no split '{wanted}'", did_you_mean(wanted, by_name, known))
    shown = by_name[wanted]
    if options.row is not None and not 0 <= options.row < shown.examples:
        raise UserError(f"no row {options.row} in '{wanted}'", f"choose a row from 0 to {shown.examples - 1}")
    indices, count = range(shown.examples), min(max(0, options.rows), shown.examples)
    if options.row is not None:
        chosen = [options.row]
    else:
        chosen = indices[:count] if options.shuffle is None else random.Random(options.shuffle).sample(indices, count)
    stated = prepared.stats.get("vocab_size")
    decoder = Decoder(prepared.tokenizer, stated if isinstance(stated, int) else None)
    copies = Copies(decoder)
    splits = [measure(split, options.budget, decoder.vocab_size, copies) for split in prepared.splits]
    refused = read_refused(prepared.folder / REJECTED) if prepared.is_whole else None
    overlaps = copies.across(ITEMS[prepared.kind])
    if options.against is not None:
        if decoder.folder is None and prepared.kind != "lines":
            raise UserError(
                "--against compares text, but the data has no tokenizer to decode with", "give --tokenizer FOLDER"
            )
        train = by_name.get("train", prepared.splits[0])
        overlaps += _overlaps_with(find_set(options.against, store, options.family), train, options.budget, decoder)
    return Inspection(
        prepared, decoder, splits, shown.at(chosen), wanted, refused, copies, overlaps,
        warnings_of(prepared, splits, overlaps, decoder),
    )  # fmt: skip


def _overlaps_with(held_out: PreparedSet, train: Split, budget: int, decoder: Decoder) -> list[Overlap]:
    """Search for the questions of a held-out set in the training text, one result per held-out split."""
    found = []
    for split in held_out.splits:
        keys = split.keys() if isinstance(split, LineSplit) else []
        if keys:
            found.append(occurrences(keys, train, budget, decoder, f"{held_out.title} {split.name}"))
    if not found:
        raise UserError(f"{held_out.title}: no row has a 'key' or a 'question'", "give an evaluation or RL set")
    return found
