"""Small synthetic data for the tiny pipeline: people, and sums.

    pretrain_documents  {"text": "Mira lives in Oster. ...", "key": ...}
    chats               {"messages": [{"role": "user", "content": "What is 3+5-7+8?"}, ...], "key": "3+5+8-7"}
    problems            {"question": "What is 3+5-7+8?", "expected_answer": "9", "key": "3+5+8-7"}
    pairs               {"prompt": "What is 3+5-7+8?", "chosen": [...], "rejected": [...], "key": "3+5+8-7"}
    eval_problems       the same as problems, held out
    eval_choices        {"question": "Where does Mira live?", "stem": "Mira lives in", "choices": [...], "answer": 2}
    eval_texts          {"text": ...}, held out

The same seed gives the same rows on every platform. A hash of the key alone decides between training and evaluation,
so for any seeds and counts, no evaluation question occurs in a training row.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from nemotron_data.synthetic import counter
from nemotron_data.synthetic.episodes import LOGIC, beginnings, demonstrations
from nemotron_data.synthetic.rows import (
    chats,
    eval_choices,
    eval_problems,
    eval_texts,
    pairs,
    pretrain_documents,
    problems,
)

Rows = Callable[..., Iterator[dict[str, Any]]]
DEMONSTRATIONS: dict[str, Rows] = {name: partial(demonstrations, name) for name in LOGIC}
DEMONSTRATIONS |= {counter.NAME: counter.demonstrations}
BEGINNINGS: dict[str, Rows] = {name: partial(beginnings, name) for name in LOGIC} | {counter.NAME: counter.beginnings}
"""Rows by the NAME in `synthetic:NAME`, from a seed and a count; of beginnings also the first world."""

__all__ = [
    "BEGINNINGS",
    "DEMONSTRATIONS",
    "chats",
    "eval_choices",
    "eval_problems",
    "eval_texts",
    "pairs",
    "pretrain_documents",
    "problems",
]
