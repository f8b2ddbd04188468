"""Guard against a malicious tokenizer.json that multiplies text or makes the library panic."""

import base64
import json
import math
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nemotron_shared.system.errors import UserError

MOST_GROWTH = 64
MOST_STEPS = 100
PARTS = ("normalizer", "pre_tokenizer", "model", "post_processor", "decoder")
SEQUENCES = ("normalizers", "pretokenizers", "processors", "decoders")
EVERYWHERE = ("suffix", "pad_token", "word_delimiter_token")
"""Settings whose empty text would match, and be replaced, between any two characters."""
ADDED = ("prepend", "continuing_subword_prefix", "end_of_word_suffix")
"""Settings whose text is added to other text."""
SHOWN = 40


@contextmanager
def panics_told(text: str) -> Generator[None]:
    """Turn a panic of the library, which is not an `Exception`, into an error.

    Args:
        text: the text to encode, or its first part.
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
    """Refuse a tokenizer.json that makes text many times longer, or that needs too many steps for it.

    This runs before the library opens the file, because the library normalizes added tokens at once. Invalid JSON and
    unknown structure are left to the library to report.

    Raises:
        UserError: naming the file and the part.
    """
    try:
        values = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return
    if not isinstance(values, dict):
        return
    for part in PARTS:
        steps, what = _steps(values.get(part)), ""
        if len(steps) > MOST_STEPS:
            what = f"has {len(steps):,} steps, and {MOST_STEPS} are the most"
        elif _together(steps) > MOST_GROWTH:
            what = f"can make a text more than {MOST_GROWTH} times as long"
        elif any(step.get("type") == "Strip" and step.get("stop") for step in steps):
            what = "strips the end of each token, and the library fails where a token is shorter than that"
        if what:
            raise UserError(f"{file}: {part}: {what}", "take another tokenizer: no text needs that")


def _steps(part: Any) -> list[dict[str, Any]]:
    """Steps in order, with nested sequences flattened."""
    found, left = [], [part]
    while left:
        step = left.pop()
        if isinstance(step, list):
            left += step
        elif isinstance(step, dict):
            found.append(step)
            left += [step[key] for key in SEQUENCES if key in step]
    return found


def _together(steps: list[dict[str, Any]]) -> float:
    try:
        return math.prod(map(_growth, steps))
    except (TypeError, AttributeError):  # a structure that the library does not read
        return 1


def _growth(step: dict[str, Any]) -> float:
    """Largest factor by which a text can grow."""
    if "single" in step:
        return _template_growth(step)
    if "precompiled_charsmap" in step:
        return _longest_mapped(step["precompiled_charsmap"])
    if step.get("type") == "ByteLevel" or any(step.get(key) == "" for key in EVERYWHERE):
        return 2
    added = max(len(step[key]) if isinstance(step.get(key), str) else 0 for key in ADDED)
    return max(1 if added <= 1 else added, _replacement_growth(step))


def _replacement_growth(step: dict[str, Any]) -> float:
    pattern, content = step.get("pattern"), step.get("content")
    if not isinstance(pattern, dict) or not isinstance(content, str):
        return 1
    literal = pattern.get("String")
    if isinstance(literal, str):
        return max(1, len(content) / len(literal)) if literal else 1
    return 1 + len(content)  # a regular expression may match nothing, before each character


def _template_growth(step: dict[str, Any]) -> float:
    """Number of texts that a template concatenates; tokens between them count only if there are many."""
    named = step.get("special_tokens")
    known = {name: token.get("ids") for name, token in named.items() if isinstance(token, dict)} if named else {}
    growth = 1
    for pieces in (step.get("single"), step.get("pair")):
        pieces = [piece for piece in pieces or [] if isinstance(piece, dict)]
        special = [piece["SpecialToken"] for piece in pieces if isinstance(piece.get("SpecialToken"), dict)]
        ids = sum(len(known.get(one.get("id")) or [0]) for one in special)
        growth = max(growth, ids if ids > MOST_GROWTH else sum("Sequence" in piece for piece in pieces))
    return growth


def _longest_mapped(charsmap: Any) -> float:
    """Characters of the longest text in a SentencePiece charsmap: its texts follow the index, each ending with a 0."""
    try:
        content = base64.b64decode(charsmap, validate=True)
        mapped = content[4 + int.from_bytes(content[:4], "little") :]
        return max(1, *(len(text.decode(errors="replace")) for text in mapped.split(b"\0")))
    except (ValueError, TypeError):
        return 1
