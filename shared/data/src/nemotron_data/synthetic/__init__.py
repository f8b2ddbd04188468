"""Small synthetic data for the tiny pipeline: people, and sums.

    pretrain_documents  {"text": "Mira lives in Oster. ...", "key": ...}
    chats               {"messages": [{"role": "user", "content": "What is 3+5-7+8?"}, ...], "key": "3+5+8-7"}
    problems            {"question": "What is 3+5-7+8?", "expected_answer": "9", "key": "3+5+8-7"}
    eval_problems       the same, held out
    eval_choices        {"question": "Where does Mira live?", "stem": "Mira lives in", "choices": [...], "answer": 2}
    eval_texts          {"text": ...}, held out

The same seed gives the same rows on every platform. A hash of the key alone decides between training and evaluation,
so for any seeds and counts, no evaluation question occurs in a training row.
"""

from functools import partial

from nemotron_data.synthetic.episodes import LOGIC, beginnings, demonstrations
from nemotron_data.synthetic.rows import chats, eval_choices, eval_problems, eval_texts, pretrain_documents, problems

DEMONSTRATIONS = {name: partial(demonstrations, name) for name in LOGIC}
BEGINNINGS = {name: partial(beginnings, name) for name in LOGIC}

__all__ = [
    "BEGINNINGS",
    "DEMONSTRATIONS",
    "chats",
    "eval_choices",
    "eval_problems",
    "eval_texts",
    "pretrain_documents",
    "problems",
]
