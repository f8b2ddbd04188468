"""How long the rows of reinforcement learning are, by the text of some of them; nothing is tokenized.

    {"responses_create_params": {"input": [{"role": "user", "content": "How much is 2+2?"}]}, ...}     17 tokens
    {"prompt": [...], "chosen": [...], "rejected": [...]}                                              2 x 41 tokens

A tokenizer with more tokens puts more text into each: about a quarter of the bits that number one of them, so 2.2
characters with 500 tokens, and 4.3 with 150,000.
"""

import math
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from nemotron_data.formats import fast_json
from nemotron_data.formats.rl_rows import PARAMETERS
from nemotron_shared.system.atomic import open_regular

READ = 200
"""Rows that are read, from the beginning of the training split."""
TURN_TOKENS = 5
"""Of a chat template around a turn."""


def prompt_tokens(data: Path, vocabulary: int) -> float | None:
    """Mean tokens of a prompt; None where the folder holds no prompts."""
    return _mean(data, lambda row: _tokens([row[PARAMETERS]], vocabulary))


def pair_tokens(data: Path, vocabulary: int) -> float | None:
    """Mean tokens of a pair: of two answers, each with its prompt. None where the folder holds no pairs."""
    return _mean(
        data, lambda row: sum(_tokens([row["prompt"], row[side]], vocabulary) for side in ("chosen", "rejected"))
    )


def _mean(data: Path, tokens: Callable[[dict[str, Any]], float]) -> float | None:
    try:
        with open_regular(data / "train.jsonl") as file:
            return fmean(tokens(fast_json.loads(line)) for line in islice(file, READ))
    except (OSError, ValueError, KeyError, TypeError):  # a start says what is wrong with them
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
