"""What is tried: a parser of the project, valid examples for it, and a second reading of the same format.

An input is a set of files by name; a word of a command line is one file of the name `WORD`. The second reading is
written from the format's description and shares no code with the parser: where the parser takes what it refuses, the
parser is too lax, or the two descriptions disagree, and either is a failure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

Files = Mapping[str, bytes]
WORD = "word"


@dataclass(frozen=True)
class Target:
    """One parser.

    Attributes:
        about: what it reads, for the table.
        examples: valid inputs, made by the project's own writers where it has them.
        use: what the project makes of the input, whose files lie in a folder; what it returns is for `fault`.
        fault: what a second reading finds wrong with an input that was accepted, None where it is valid.
        words: what the parser looks for, to be put into texts.
        refusals: exceptions besides `UserError` that the caller of the parser turns into one.
        seconds: of processor time, after which it hangs.
        share: of the inputs of a campaign, in proportion to the other targets; slow parsers get less.
    """

    name: str
    about: str
    examples: Callable[[], Sequence[Files]]
    use: Callable[[Path, Files], object]
    fault: Callable[[Files, object], str | None]
    words: tuple[str, ...] = ()
    refusals: tuple[type[Exception], ...] = ()
    seconds: float = 5.0
    share: float = 1.0
    in_files: bool = True
    mutate: Callable[[Files, Random], Files] | None = None
    """Changes that only this format has."""


def word_of(files: Files) -> str:
    """The word of an input that is one; bytes that are no UTF-8 come as Python gives them in `sys.argv`."""
    return files[WORD].decode("utf-8", "surrogateescape")


def words(*texts: str) -> list[Files]:
    """Examples that are words."""
    return [{WORD: text.encode()} for text in texts]
