"""Answers of models, judged against what was expected: whatever they write, it takes bounded time."""

from pathlib import Path

from nemotron_data.verifier import Verdict, judge
from nemotron_prove.input.second import fault_of, require
from nemotron_prove.input.target import Files, Target

PAIRS = (
    ("<think>3+4=7</think>The answer is 7.", "7"),
    ("So Ann has 7 apples left.", "7"),
    ("\\boxed{\\frac{1}{2}}", "0.5"),
    ("$\\frac{\\sqrt{2}}{2}$", "\\frac{1}{\\sqrt{2}}"),
    ("(B)", "B"),
    ("Paris", "Paris"),
    ("#### 1,234", "1234"),
    ("x^2 - y^2", "(x-y)(x+y)"),
    ("50 %", "0.5"),
    ("\\{1, 2\\}", "{2, 1}"),
    ("2026-01-31", "31 January 2026"),
    ("twenty-one", "21"),
    ("(-\\infty, 2]", "x \\leq 2"),
    ("3 m/s", "3 m/s"),
    ("1.5e3", "1500"),
)
WORDS = (
    "\\frac{",
    "\\sqrt{",
    "}",
    "^",
    "9^9^9",
    "!",
    "99999!",
    "\\boxed{",
    "<think>",
    "</think>",
    "####",
    "e999999",
    "\\sum_{",
    "\\int",
    "x^{99}",
    "(x+1)^{40}",
    "\\begin{pmatrix}",
    "1/0",
    "²",
    "٣",
    "{{{{",
    "((((",
    "%",
    "\\binom{99}{50}",
    "10**10**10",
    "\\overline{3}",
    "=",
    "or",
    "\\prod_{n=1}^{10000000}",
    "\\lim",
    "0x",
    "million",
    "\\text{",
    "$",
    ",",
    "\\cup",
)


def _examples() -> list[Files]:
    return [{"said.word": said.encode(), "gold.word": gold.encode()} for said, gold in PAIRS]


def _text(files: Files, name: str) -> str:
    return files.get(f"{name}.word", b"").decode("utf-8", "replace")


def _judge(folder: Path, files: Files) -> Verdict:
    return judge(_text(files, "said"), _text(files, "gold"))


def _fault(files: Files, made: object) -> str | None:
    def read() -> None:
        assert isinstance(made, Verdict)
        said, gold = _text(files, "said"), _text(files, "gold")
        require(not made.strict or made.lenient, "strictly right, and wrong")
        thought = "<think>" in said and "</think>" not in said
        require(not (thought and made.lenient), "a thought that was never closed earns something")
        require(not (made.lenient and not said.strip()), "nothing said, and right")
        numbers = [_plain(text) for text in (said, gold)]
        if None not in numbers:
            require(made.lenient == (numbers[0] == numbers[1]), "two whole numbers judged wrongly")

    return fault_of(read)


def _plain(text: str) -> int | None:
    """A whole number of a few digits, written as nothing else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 15 else None


TARGETS = (
    Target("answer", "answers of models", _examples, _judge, _fault, WORDS, seconds=20, share=0.1, in_files=False),
)
