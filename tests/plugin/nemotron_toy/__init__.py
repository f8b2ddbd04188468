"""A reward, an evaluation task, a family and a log from outside the repository; the engine is in `engine.py`."""

from pathlib import Path

from nemotron_shared.families import Family
from nemotron_shared.machine.library_output import LibraryLog
from stages.eval.tasks import TaskRows

FAMILY = Family("A family of toys", stages=("sft", "eval"), configs=Path(__file__).parent / "families")
LOG = LibraryLog("a box of toys", {"sadness": r"toy (?P<step>\d+) of (?P<steps>\d+): sadness (?P<loss>\S+)"})


def brevity(completion: str, expected: str) -> float:
    """1 for an empty completion, less the longer it is."""
    return 1 / (1 + len(completion))


def capitals(seed: int) -> TaskRows:
    """Two questions with choices."""
    rows = [
        {"question": "What is the capital of Peru?", "choices": ["Lima", "Quito"], "answer": 0},
        {"question": "What is the capital of Chad?", "choices": ["Lagos", "N'Djamena"], "answer": 1},
    ]
    return TaskRows("choice", rows)
