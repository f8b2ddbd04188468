"""A parser of the project that gets damaged input: it must accept an input rightly, or refuse it with a clear error."""

import io
import json
import math
import re
import shutil
import signal
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from fuzz.damage import WORD, Files, damaged
from hypothesis import strategies as st

from nemotron_shared.system.errors import DISK_REMEDIES, UserError

LONGEST_MESSAGE = 4000
SAYS_WHAT = re.compile(r"\b(?:should|must|needs?|write|give|use|maximum|twice|there are|did you mean|fits)\b")
"""A message that says what the value has to be needs no remedy on a second line."""


@dataclass(frozen=True)
class Parser:
    """What gets damaged input.

    Attributes:
        examples: valid inputs, made by the project's own writers where it has them.
        read: what the project makes of the files, which are in a folder.
        check: a second reading of an accepted input, written from the format's description without the parser's code.
            If it fails, the parser is too lax, or the two descriptions disagree.
        words: what the parser looks for, to put into texts.
        damage: changes that only this format has.
        on_disk: write the files; if not, `read` gets them only as bytes, and none is missing.
        seconds: CPU time after which the parser hangs.
        share: number of inputs, as a multiple of that of other parsers.
    """

    examples: Callable[[], Sequence[Files]]
    read: Callable[[Path, Files], Any]
    check: Callable[[Files, Any], None]
    words: Sequence[str] = ()
    damage: Callable[[Files, Random], Files] | None = None
    on_disk: bool = True
    seconds: float = 5.0
    share: float = 1.0


@st.composite
def inputs(draw: st.DrawFn, parser: Parser) -> Files:
    """Damaged examples of a parser. Hypothesis draws every choice, so it can make a failing input smaller."""
    random = draw(st.randoms(use_true_random=False))
    example = random.choice(parser.examples())
    if parser.damage is not None and random.random() < 0.5:
        return parser.damage(example, random)
    made = damaged(example, random, parser.words)
    return made if parser.on_disk else {name: made.get(name, b"") for name in example}


class Hang(BaseException):
    """Raised in whatever takes too long; `except Exception` does not catch it."""


@contextmanager
def limit(seconds: float) -> Generator[None]:
    """Raise `Hang` after so much CPU time: on a loaded machine, wall time says nothing."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def verdict(parser: Parser, files: Files, folder: Path) -> str:
    """Give an input to a parser; returns "accepted" or "refused".

    Raises:
        AssertionError: a traceback, a hang, an unclear error, or an input that was accepted wrongly.
    """
    if parser.on_disk:
        _write(files, folder)
    try:
        with limit(parser.seconds), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            made = parser.read(folder, files)
    except Hang as error:
        raise AssertionError(f"hang: more than {parser.seconds:g} s of CPU time") from error
    except UserError as error:
        _require_clear(error)
        return "refused"
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # panics of Rust libraries are no Exception
        if _is_explained(error):
            return "refused"
        raise AssertionError(f"traceback: {type(error).__name__}: {error}") from error
    try:
        parser.check(files, made)
    except Exception as error:  # a valid input is read to its end
        raise AssertionError(f"accepted, but the second reading says: {type(error).__name__}: {error}") from error
    return "accepted"


def _write(files: Files, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _require_clear(error: UserError) -> None:
    said = str(error)
    has_remedy = error.remedy is not None or "\n" in error.message.strip() or SAYS_WHAT.search(said)
    assert has_remedy, f"an error without a remedy: {said}"
    assert len(said) <= LONGEST_MESSAGE, f"an error of {len(said):,} characters: {said[:200]}"


def _is_explained(error: BaseException) -> bool:
    """Whether the commands turn it into a message; see `program.exit_code_of`."""
    without_home = isinstance(error, RuntimeError) and "home directory" in str(error)
    return without_home or (isinstance(error, OSError) and any(error.errno in known for known, _ in DISK_REMEDIES))


def word_of(files: Files) -> str:
    """The word of a command line. Bytes that are not UTF-8 come as Python puts them into `sys.argv`."""
    return files[WORD].decode("utf-8", "surrogateescape")


def word_examples(*texts: str) -> Callable[[], list[Files]]:
    """Examples that are words of a command line."""
    return lambda: [{WORD: text.encode()} for text in texts]


def json_examples(name: str, *values: object) -> Callable[[], list[Files]]:
    """Examples that are one JSON file."""
    return lambda: [{name: json.dumps(value).encode()} for value in values]


def json_lines(*rows: object) -> bytes:
    """Rows as JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def lines_of(content: bytes) -> list[bytes]:
    """The lines that are not blank."""
    return [line for line in content.split(b"\n") if line.strip()]


def strict_json(content: bytes) -> Any:
    """JSON of RFC 8259, with neither NaN nor a repeated key."""

    def refuse(text: str) -> float:
        raise AssertionError(f"not JSON: {text}")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), "a repeated key"
        return dict(pairs)

    return json.loads(content.decode(), parse_constant=refuse, object_pairs_hook=once)


def is_number(value: object) -> bool:
    """Whether it is a finite number and not a boolean."""
    return type(value) is int or (type(value) is float and math.isfinite(value))


def is_count(value: object) -> bool:
    """Whether it is a whole number, not negative."""
    return type(value) is int and value >= 0


def unquoted(value: Any) -> Any:
    """A number that is written in quotes, and 8 for 8.0: configs may, because YAML reads 1e-3 as a text."""
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        return value
    return int(number) if isinstance(number, float) and number.is_integer() else number
