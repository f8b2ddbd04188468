"""One input, one verdict.

accepted   the parser takes it, and so does the second reading
refused    a `UserError` that says what is wrong and what to do
unclear    a `UserError` without a remedy, or one too long to read
traceback  any other exception
hang       more processor time than the target allows
silent     the parser takes what the second reading refuses
"""

import contextlib
import io
import re
import shutil
import signal
import traceback
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType

from nemotron_prove.input.mutate import mutated
from nemotron_prove.input.target import Files, Target
from nemotron_shared.errors import DISK_REMEDIES, UserError

OKAY = ("accepted", "refused")
FAILURES = ("unclear", "traceback", "hang", "silent", "died")
LONGEST_MESSAGE = 4000
OURS = ("nemotron_", "/stages/")
SAYS_WHAT = re.compile(r"\b(?:should|must|needs?|write|give|use|maximum|twice|there are|did you mean|fits)\b")
"""A message that says what the value has to be needs no second line."""


@dataclass(frozen=True)
class Verdict:
    """What came of an input; `signature` is the same for failures of one cause."""

    kind: str
    said: str = ""
    signature: str = ""


class Hang(BaseException):
    """Raised in the middle of whatever takes too long; no `except Exception` holds it up."""


@contextlib.contextmanager
def limited(seconds: float) -> Generator[None]:
    """Raise `Hang` after so many seconds of processor time: a loaded machine is no hang.

    Not by the clock, whose signal the verifier of answers uses itself.
    """

    def ring(number: int, frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def input_of(target: Target, examples: list[Files], seed: int, number: int) -> Files:
    """Input `number` of a campaign: the examples as they are, then damaged ones; the same for the same seed."""
    if number < len(examples):
        return examples[number]
    random = Random(f"{seed} {target.name} {number}")
    example = random.choice(examples)
    if target.mutate is not None and random.random() < 0.5:
        return target.mutate(example, random)
    made = mutated(example, random, target.words)
    return made if target.in_files else {name: made.get(name, b"") for name in example}  # words cannot be missing


def tried(target: Target, files: Files, folder: Path) -> Verdict:
    """Give an input to the parser, in a folder that is emptied first."""
    try:
        if target.in_files:
            _lay_out(files, folder)
        with (
            limited(target.seconds),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            made = target.use(folder, files)
    except Hang:
        return Verdict("hang", f"more than {target.seconds:g} seconds", "hang")
    except UserError as error:
        return _refusal(error)
    except target.refusals as error:
        return Verdict("refused", str(error))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        if _is_told(error):
            return Verdict("refused", str(error))
        return Verdict("traceback", f"{type(error).__name__}: {error}", f"{type(error).__name__} at {_place(error)}")
    try:
        fault = target.fault(files, made)
    except Exception as error:  # it reads a valid input to its end, so this one is none, or the reading is wrong
        fault = f"the second reading ends in {type(error).__name__}: {error}"
    return Verdict("accepted") if fault is None else Verdict("silent", fault, f"silent: {_general(fault)}")


def _is_told(error: BaseException) -> bool:
    """Whether the commands' own entry turns it into a message; see `errors.exit_code_of`."""
    is_nobody = isinstance(error, RuntimeError) and "home directory" in str(error)
    return is_nobody or (isinstance(error, OSError) and any(error.errno in numbers for numbers, _ in DISK_REMEDIES))


def _lay_out(files: Files, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _refusal(error: UserError) -> Verdict:
    said = str(error)
    if error.remedy is None and "\n" not in error.message.strip() and not SAYS_WHAT.search(said):
        return Verdict("unclear", f"no remedy: {said[:500]}", f"no remedy at {_place(error)}")
    if len(said) > LONGEST_MESSAGE:
        return Verdict("unclear", f"{len(said):,} characters: {said[:200]}", f"too long at {_place(error)}")
    return Verdict("refused", said)


def _place(error: BaseException) -> str:
    """The innermost line of the project's own code, and the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [
        one for one in frames if any(part in one.filename for part in OURS) and "nemotron_prove" not in one.filename
    ]
    shown = (ours or frames)[-1]
    return f"{Path(shown.filename).name}:{shown.lineno} {shown.name}"


def _general(fault: str) -> str:
    """A fault without the figures and names in it."""
    return "".join("0" if char.isdigit() else char for char in fault.partition(":")[0])[:80]
