"""Prepared sets in one form: splits that hold examples, read from bin/idx pairs, packed Parquet or JSON lines."""

import json
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nemotron_data.formats.bin_idx import SPLITS, IndexedDataset, data_set_of, read_blend
from nemotron_data.formats.eval_tasks import search_key
from nemotron_data.formats.json_lines import parse
from nemotron_data.formats.rl_rows import PARAMETERS, RLRow, validate, validate_prompt
from nemotron_data.rejects import Refused
from nemotron_shared.system.atomic import open_regular
from nemotron_shared.system.errors import UserError, disk_remedy

if TYPE_CHECKING:
    import pyarrow.parquet as pq

# An example of pretraining is one document: a single sequence, trained on completely. Of SFT it is one packed row:
# several sequences, with the loss on the assistant's tokens. Of RL and evaluation it is one JSON row.


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
    """One document, packed row or JSON row.

    Attributes:
        place: its location.
        answers: the text of both answers of a pair, by field.
        problem: what is wrong with it.
    """

    split: str
    index: int
    place: str
    sequences: Sequence[TokenSequence] = ()
    turns: Sequence[tuple[str, str]] = ()
    facts: Sequence[tuple[str, str]] = ()
    answers: Mapping[str, str] = field(default_factory=dict)
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


# Pretraining documents: Megatron bin/idx pairs, listed in blend.json and memory-mapped.
#
# {"train": ["0.7", "train/web/shard_000000", "0.3", "train/code/shard_000000"], "valid": null, "test": null}

OPEN_AT_ONCE = 4  # an index is loaded completely, so keep only a few of them


class DocumentSplit(Split):
    """Documents of one split, across all its bin/idx pairs: (weight in the blend, path without suffix)."""

    def __init__(self, name: str, pairs: Sequence[tuple[float | None, Path]], root: Path) -> None:
        self.name = name
        self.files = []
        self._prefixes = [prefix for _, prefix in pairs]
        self._names: list[str] = []
        self._lengths: Counter[int] = Counter()
        self._open = lru_cache(OPEN_AT_ONCE)(IndexedDataset)
        for weight, prefix in pairs:
            dataset = self._open(prefix)
            values, counts = np.unique(dataset.lengths, return_counts=True)
            self._lengths.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
            self._names.append(prefix.relative_to(root).as_posix() if prefix.is_relative_to(root) else str(prefix))
            data_set = data_set_of(self._names[-1], name)
            self.files.append(DataFile(data_set, weight, len(dataset), int(dataset.num_tokens)))
        self._firsts = np.cumsum([0, *(file.examples for file in self.files)])

    def lengths(self) -> Counter[int]:
        """See the base class."""
        return self._lengths

    def at(self, indices: Sequence[int]) -> list[Example]:
        """See the base class."""
        numbers = (np.searchsorted(self._firsts, indices, side="right") - 1).tolist()
        return [
            self._example(number, index - int(self._firsts[number]))
            for number, index in zip(numbers, indices, strict=True)
        ]

    def scan(self, budget: int) -> Iterator[Example]:
        """Documents of the chosen lengths. Exact duplicates have equal lengths, so they are always chosen together."""
        chosen = np.array(sorted(self._chosen(budget)))
        left = budget
        for number, prefix in enumerate(self._prefixes):
            for index in np.flatnonzero(np.isin(self._open(prefix).lengths, chosen)).tolist():
                example = self._example(number, index)
                left -= example.tokens
                yield example
                if left < 0:
                    return

    def sample_note(self, budget: int) -> str | None:
        """See the base class."""
        if self.tokens <= budget:
            return None
        return f"documents of {len(self._chosen(budget)):,} of {len(self._lengths):,} lengths"

    def _chosen(self, budget: int) -> set[int]:
        """Lengths in a pseudo-random but deterministic order, until their documents hold `budget` tokens."""
        found, tokens = set(), 0
        for length in sorted(self._lengths, key=lambda length: (length * 2_654_435_761) % 2**32):
            found.add(length)
            tokens += length * self._lengths[length]
            if tokens > budget:
                break
        return found

    def _example(self, number: int, index: int) -> Example:
        """Document `index` of the pair with this number."""
        ids = self._open(self._prefixes[number])[index]
        place = f"{self._names[number]}, document {index}"
        problem = None if len(ids) else "a document without tokens"
        return Example(self.name, int(self._firsts[number]) + index, place, [TokenSequence(ids)], problem=problem)


def blend_splits(blend: Path) -> list[DocumentSplit]:
    """The non-empty splits of a blend.json, training first."""
    found = read_blend(blend)
    return [DocumentSplit(name, found[name], blend.parent) for name in SPLITS if name in found]


# Packed SFT rows, read one row group at a time so that file size does not matter.
#
# The stored loss mask is shifted: entry k says whether token k + 1 counts. It is shifted back here, within each
# sequence, so that `trained` marks the tokens that a model learns to write:
#
#     input_ids  <|im_start|> user 2+2? <|im_end|> <|im_start|> assistant 4 <|im_end|>
#     loss_mask  0            0    0    0          0            1         1 0            as stored
#     trained    0            0    0    0          0            0         1 1            as shown

COLUMNS = ("input_ids", "loss_mask", "seq_start_id")
BATCH_ROWS = 64
REBUILD = "run data preparation again with --force"


class PackedSplit(Split):
    """Rows of one packed Parquet file."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self._rows, tokens = [], 0
        with open_parquet(path) as file:
            for number in range(file.num_row_groups):
                group = file.metadata.row_group(number)
                columns = [group.column(index) for index in range(group.num_columns)]
                self._rows.append(group.num_rows)
                tokens += sum(one.num_values for one in columns if one.path_in_schema.startswith("input_ids"))
        self._firsts = np.cumsum([0, *self._rows])
        self.files = [DataFile(path.stem, None, sum(self._rows), tokens)]

    def at(self, indices: Sequence[int]) -> list[Example]:
        """See the base class. Each required row group is read once."""
        wanted, found = set(indices), {}
        for group in sorted(set((np.searchsorted(self._firsts, list(wanted), side="right") - 1).tolist())):
            for example in self._group(group):
                if example.index in wanted:
                    found[example.index] = example
                if found.keys() >= wanted:
                    break
        return [found[index] for index in indices]

    def scan(self, budget: int) -> Iterator[Example]:
        """The first rows of row groups spread evenly over the file, with an equal share of the budget per group."""
        chosen = self._chosen(budget)
        for group in chosen:
            left = budget / len(chosen)
            for example in self._group(group):
                left -= example.tokens
                yield example
                if left < 0 and self.tokens > budget:
                    break

    def sample_note(self, budget: int) -> str | None:
        """See the base class."""
        if self.tokens <= budget:
            return None
        return f"the first rows of {len(self._chosen(budget)):,} of {len(self._rows):,} row groups"

    def _chosen(self, budget: int) -> range:
        return range(0, len(self._rows), max(1, math.ceil(self.tokens / max(1, budget))))

    def _group(self, group: int) -> Iterator[Example]:
        """Rows of a row group, in batches."""
        with open_parquet(self.path) as file:
            index = int(self._firsts[group])
            for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=list(COLUMNS)):
                arrays = []
                for name in COLUMNS:
                    column = batch.column(name)
                    values = column.flatten()
                    if column.null_count or values.null_count:
                        raise UserError(f"{self.path}: column '{name}' holds nulls", REBUILD)
                    arrays.append(np.split(values.to_numpy(), np.cumsum(column.value_lengths().to_numpy())[:-1]))
                for ids, mask, starts in zip(*arrays, strict=True):
                    yield row_example(self.name, index, ids, mask, starts)
                    index += 1


def row_example(split: str, index: int, ids: np.ndarray, mask: np.ndarray, starts: np.ndarray) -> Example:
    """A stored row, split into its sequences. A row with an invalid layout is shown as a single sequence."""
    from nemotron_data.formats.packed import PackedRow

    place = f"{split}, row {index}"
    problem = PackedRow(ids, mask, starts).problem()
    if len(mask) != len(ids):
        return Example(split, index, place, [TokenSequence(ids, np.zeros(len(ids), bool))], problem=problem)
    inner = starts.astype(np.int64)
    ordered = len(inner) and inner[0] == 0 and (np.diff(np.append(inner, len(ids))) >= 0).all()
    bounds = np.append(inner, len(ids)) if ordered else np.array([0, len(ids)])
    sequences = [TokenSequence(ids[low:high], trained_tokens(mask[low:high])) for low, high in pairwise(bounds)]
    return Example(split, index, place, sequences, problem=problem)


def trained_tokens(mask: np.ndarray) -> np.ndarray:
    """Which tokens of one sequence are trained on: its stored mask, shifted right by one, as bool.

    >>> trained_tokens(np.array([0, 1, 1, 0])).tolist()
    [False, False, True, True]
    """
    return np.concatenate([np.zeros(min(1, len(mask)), bool), mask[:-1].astype(bool)])


def open_parquet(path: Path) -> "pq.ParquetFile":
    """Open a Parquet file and require the columns of packed rows.

    Raises:
        UserError: columns are missing, or the file is not Parquet.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: not readable as Parquet: {error}", REBUILD) from error
    if not set(COLUMNS) <= set(file.schema_arrow.names):
        raise UserError(
            f"{path}: not packed data: it lacks {', '.join(COLUMNS[:-1])} or {COLUMNS[-1]}",
            "inspect shows what data preparation has made; this may be what goes into it",
        )
    return file


# JSON rows of reinforcement learning and evaluation, read line by line in constant memory.
#
# {"responses_create_params": {"input": [{"role": "user", "content": "What is 3+4?"}]}, "expected_answer": "7",
#  "agent_ref": {"type": "responses_api_agents", "name": "math_with_judge_simple_agent"}}
# {"question": "Compute 7-1.", "expected": "6", "key": "7-1"}

PLACEHOLDER = "_hf_placeholder"
ANSWERS = ("expected_answer", "expected", "answer")
PAIR = ("chosen", "rejected")
BYTES_PER_TOKEN = 4  # converts a token budget to bytes of text
FACT_CHARACTERS = 400


class LineSplit(Split):
    """Rows of one JSONL file. Empty lines do not count."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        try:
            self._bytes = path.stat().st_size
            self.files = [DataFile(path.stem, None, sum(1 for _ in self._lines()), 0)]
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}", disk_remedy(error)) from error

    def at(self, indices: Sequence[int]) -> list[Example]:
        """See the base class. Reads the file up to the last requested row."""
        wanted, found = set(indices), {}
        for index, (number, line) in enumerate(self._lines()):
            if index in wanted:
                found[index] = self._example(index, number, line)
                if len(found) == len(wanted):
                    break
        return [found[index] for index in indices]

    def scan(self, budget: int) -> Iterator[Example]:
        """All rows, or every n-th."""
        stride = self._stride(budget)
        for index, (number, line) in enumerate(self._lines()):
            if index % stride == 0:
                yield self._example(index, number, line)

    def sample_note(self, budget: int) -> str | None:
        """See the base class."""
        stride = self._stride(budget)
        return None if stride == 1 else f"one row in {stride:,}"

    def keys(self) -> list[str]:
        """Questions to search for in training text."""
        rows = (row for _, line in self._lines() if (row := parse(line)[0]) is not None)
        return [key for row in rows if (key := search_key(row) or RLRow.of(row).question.strip())]

    def _stride(self, budget: int) -> int:
        return max(1, math.ceil(self._bytes / max(1, budget * BYTES_PER_TOKEN)))

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with open_regular(self.path) as file:
            yield from ((number, line) for number, line in enumerate(file, start=1) if line.strip())

    def _example(self, index: int, number: int, line: bytes) -> Example:
        place = f"{self.path.name}, line {number}"
        value, _ = parse(line)
        if value is None:
            facts = [("line", line[:FACT_CHARACTERS].decode("utf-8", "backslashreplace"))]
            return Example(self.name, index, place, facts=facts, problem="not a JSON object")
        row = RLRow.of(value)
        # Only evaluation rows have no prompt: their question is the user's turn.
        asked = value.get("question") if PARAMETERS not in value and not row.prompt else None
        turns = [(turn.role, turn.text) for turn in row.prompt] + ([("user", asked)] if isinstance(asked, str) else [])
        # Expected answer and agent first, then every field that the turns do not already show.
        texts, parameters = [text for _, text in turns], value.get(PARAMETERS)
        fields: list[tuple[str, Any]] = [(name.replace("_", " "), value[name]) for name in ANSWERS if name in value]
        fields += [("agent", row.agent)] if row.agent else []
        hidden = {*ANSWERS, "agent_ref", PARAMETERS, *(("prompt",) if row.prompt else ())}
        answers = {name: _text_of(value[name]) for name in PAIR if isinstance(value.get(name), list)}
        fields += [(name, given) for name, given in value.items() if name not in hidden and given not in texts]
        if isinstance(parameters, dict):
            fields += [(name, given) for name, given in parameters.items() if name != "input"]
        facts = []
        for name, given in fields:
            shown = answers.get(name, given)
            text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
            facts.append((name, text if len(text) <= FACT_CHARACTERS else text[: FACT_CHARACTERS - 1] + "…"))
        return Example(self.name, index, place, (), turns, facts, answers, row.agent, _problem(row))


def _text_of(turns: list[Any]) -> str:
    """The text of an answer's turns: words, thoughts and calls."""
    said = (value for turn in turns if isinstance(turn, dict) for name, value in turn.items() if name != "role")
    return "\n".join(one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in said if one)


def _problem(row: RLRow) -> str | None:
    """Problems for a trainer or a verifier. Rows without a prompt belong to evaluations."""
    if PLACEHOLDER in row.value:
        return "a placeholder that was not resolved"
    if PARAMETERS not in row.value:
        return None
    try:
        (validate if "agent_ref" in row.value else validate_prompt)(row.value)
    except Refused as refused:
        return refused.reason
    if not row.question.strip():
        return "no text in the user's turn"
    return None if row.agent or any(name in row.value for name in ANSWERS) else "no expected answer"
