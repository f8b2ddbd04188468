"""What a stranger's tokenizer.json must not do: multiply a text, or end the program where its patterns meet one."""

import json
import math
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nemotron_shared.errors import UserError

MOST_GROWTH = 64
SHOWN = 40


@contextmanager
def panics_told(text: str) -> Generator[None]:
    """A panic of the library, which is no `Exception`, as one error.

    Args:
        text: what is encoded, or the first of it.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        what = f"the tokenizer fails at a text that begins with {text[:SHOWN]!r}: {str(error)[:200]}"
        raise UserError(
            what, "take another tokenizer: a pattern in its tokenizer.json cannot match every text"
        ) from error


def require_no_growth(file: Path) -> None:
    """Refuse a tokenizer.json whose replacements make a text many times as long.

    It is read before the library opens it, since that normalizes the added tokens at once. What is no JSON, and what
    has another form, is told of by the library.

    Raises:
        UserError: they do.
    """
    content = file.read_bytes()
    if b"Replace" not in content and b"\\u" not in content:  # the latter may spell it; parsing takes 0.1 s
        return
    try:
        values = json.loads(content)
        growth = _growth(values.get("normalizer")) if isinstance(values, dict) else 1
    except (ValueError, RecursionError):
        return
    if growth > MOST_GROWTH:
        what = f"{file}: normalizer: its replacements can make a text more than {MOST_GROWTH} times as long"
        raise UserError(what, "take another tokenizer: no text needs that")


def _growth(normalizer: Any) -> float:
    """How many times as long a text can become, at most."""
    if not isinstance(normalizer, dict):
        return 1
    steps = normalizer.get("normalizers")
    if isinstance(steps, list):
        return math.prod(map(_growth, steps))
    pattern, content = normalizer.get("pattern"), normalizer.get("content")
    if not isinstance(pattern, dict) or not isinstance(content, str):
        return 1
    literal = pattern.get("String")
    if isinstance(literal, str):
        return max(1, len(content) / len(literal)) if literal else 1
    return 1 + len(content)  # a regular expression may match nothing, before each character
