"""How long the rows of reinforcement learning are, by the text of some of them; nothing is tokenized.

    {"responses_create_params": {"input": [{"role": "user", "content": "How much is 2+2?"}]}, ...}     17 tokens
    {"prompt": [...], "chosen": [...], "rejected": [...]}                                              2 x 41 tokens

A tokenizer with more tokens puts more text into each: about a quarter of the bits that number one of them, so 2.2
characters with 500 tokens, and 4.3 with 150,000.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from nemotron_data.formats import fast_json
from nemotron_data.formats.rl_rows import PARAMETERS
from nemotron_shared.system.atomic import open_regular

READ = 200
"""Rows that are read, from the beginning of the training split."""
TURN_TOKENS = 5
"""Of a chat template around a turn."""
Row = dict[str, Any]


class Lengths(NamedTuple):
    """Tokens of the rows that were read: `mean`, and `longest`, to which the others of a batch are padded."""

    mean: float
    longest: float


def rows_of(data: Path) -> list[Row]:
    """The first rows of prepared data; none where it holds no prompts or pairs."""
    try:
        with open_regular(data / "train.jsonl") as file:
            return [fast_json.loads(line) for line in islice(file, READ)]
    except (OSError, ValueError):  # a start says what is wrong with them
        return []


def prompt_tokens(rows: Sequence[Row], vocabulary: int) -> Lengths | None:
    """Tokens of a prompt; None without prompts."""
    found = _found(rows, lambda row: (_tokens([row[PARAMETERS]], vocabulary),))
    return None if found is None else Lengths(fmean(one for (one,) in found), max(found)[0])


def pair_tokens(rows: Sequence[Row], vocabulary: int) -> Lengths | None:
    """Tokens of a pair: of two answers, each with its prompt. None without pairs.

    Both answers of all pairs are padded to the longest one, so the longest pair is twice that.
    """
    sides = ("chosen", "rejected")
    found = _found(rows, lambda row: tuple(_tokens([row["prompt"], row[side]], vocabulary) for side in sides))
    return None if found is None else Lengths(fmean(map(sum, found)), 2 * max(map(max, found)))


def _found(rows: Sequence[Row], tokens: Callable[[Row], tuple[float, ...]]) -> list[tuple[float, ...]] | None:
    try:
        return [tokens(row) for row in rows] or None
    except (KeyError, TypeError):
        return None


def _tokens(parts: list[Any], vocabulary: int) -> float:
    texts = list(_texts(parts))
    return sum(map(len, texts)) * 4 / math.log2(max(vocabulary, 16)) + TURN_TOKENS * (1 + len(texts) // 2)


def _texts(value: Any) -> Iterator[str]:
    """All texts of a conversation: contents and roles, calls and tools."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
