"""Numbers, times and columns as text for people: 0.4125 is 41.2%, 1234567 tokens are 1.2M, 185 s are 3 min 5 s."""

import json
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from nemotron_shared.system.console import below_here
from nemotron_shared.system.errors import printable

SHARES = {"right", "exact_match", "acc", "followed", "passed"}
METRIC_NAMES = {
    "right": "right answers",
    "exact_match": "exact match",
    "acc": "accuracy",
    "followed": "prompts followed",
    "passed": "programs that pass",
    "bits_per_byte": "bits per byte",
}
GAP = 2
"""Spaces between columns."""
NEWER = "Newer than this report's models and data, and not part of it:"
NOT_FINITE = "not finite"
CONTROL = re.compile(r"<\|[^|<>]*\|>|</?s>|<think>\s*(?:</think>)?")
TURN = re.compile(r"<\|im_start\|>(\w+)\n")
TOOL_RESULT = re.compile(r"<tool_response>(.*?)</tool_response>", re.DOTALL)


def metric_name(metric: str) -> str:
    """Display name of a metric."""
    return METRIC_NAMES.get(metric, metric.replace("_", " "))


def value(metric: str, number: float) -> str:
    """A score: shares in percent, others with three decimals."""
    if not math.isfinite(number):
        return NOT_FINITE
    return f"{number:.1%}" if metric in SHARES else f"{number:.3f}"


def cut(share: float | None) -> str:
    """The share of answers that were cut at the longest length; nothing where none was, or none was generated."""
    return f"{share:.1%} cut" if share else ""


def difference(metric: str, number: float) -> str:
    """A signed difference without unit; shares in percentage points."""
    if not math.isfinite(number):
        return NOT_FINITE
    text = f"{number * 100:+.1f}" if metric in SHARES else f"{number:+.3f}"
    return text.replace("-", "−") if float(text) else text.lstrip("+-")


def change(metric: str, number: float) -> str:
    """A signed difference; with its unit if that is points."""
    return difference(metric, number) + (" points" if metric in SHARES else "")


def change_interval(metric: str, bounds: Sequence[float]) -> str:
    """`+36.2 to +45.9`."""
    return f"{difference(metric, bounds[0])} to {difference(metric, bounds[1])}"


def amount(metric: str, number: float) -> str:
    """The size of a difference: `39.0 points`, `0.108 bits per byte`."""
    return f"{difference(metric, abs(number)).lstrip('+')} {'points' if metric in SHARES else metric_name(metric)}"


def setting(value: object) -> str:
    """A setting's value: strings unquoted, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def counted(number: int, noun: str) -> str:
    """`1 step`, `480 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def short_count(number: float) -> str:
    """`1.2M`, `164k`; in full below ten thousand."""
    if number < 10_000:
        return f"{number:,.0f}"
    power = min(int(math.log10(number)) // 3, 4)
    scaled = number / 1000**power
    return f"{scaled:.{1 if scaled < 100 else 0}f}{' kMBT'[power]}"


def number(measured: float) -> str:
    """A measurement with about four digits."""
    if not math.isfinite(measured):
        return NOT_FINITE
    return f"{measured:,.0f}" if measured == int(measured) or abs(measured) >= 1000 else f"{measured:.4g}"


def duration(seconds: float | None) -> str:
    """`0.8 s`, `58 s`, `3 min 5 s`, `2 h 10 min`; a dash if unknown."""
    if seconds is None:
        return "–"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    amounts = {"h": hours, "min": minutes, "s": 0 if hours else rest}
    return " ".join(f"{number} {unit}" for unit, number in amounts.items() if number)


def plain_turns(question: str) -> str:
    """A conversation up to the requested answer, without its template's markup."""
    turns = TURN.sub(r"\1: ", question.rpartition("<|im_start|>assistant")[0] or question)
    return CONTROL.sub(" ", turns).strip()


def last_turn(question: str) -> tuple[str, list[str]]:
    """The user's last words in a conversation up to an answer, and the results of tools since then.

    Where a template marks turns in another way, the words are all of the conversation.
    """
    _, *turns = TURN.split(question.rpartition("<|im_start|>assistant")[0])
    asked, results = "", list[str]()
    for role, text in zip(turns[::2], turns[1::2], strict=True):
        shown = CONTROL.sub(" ", text)
        if role == "user" and (said := TOOL_RESULT.sub("", shown).strip()):
            asked, results = said, []
        # templates give results a role of their own, or write them as a user's turn
        results += TOOL_RESULT.findall(shown) or ([shown] if role == "tool" else [])
    return asked or plain_turns(question), [result.strip() for result in results]


# Plain output for the commands that inspect a store: aligned columns, no cursor movement.
#
# Names, commands and metadata come from files that others may have written. Control characters in them are escaped;
# otherwise an escape sequence could rewrite the terminal.


LEAST_WRAPPED = 24
"""Characters of a column that continues in the next line."""


def table_lines(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[str] = (),
    spare: Sequence[str] = (),
    *,
    wrapped: bool = False,
) -> list[str]:
    """Aligned columns.

    Args:
        right: columns that are right-aligned.
        spare: columns that a terminal may be too narrow for, the first to be left out first.
        wrapped: whether a terminal continues the last column in further lines.
    """
    clean = [headings, *(row if "".join(row).isprintable() else [*map(printable, row)] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*clean, strict=True)]
    there = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    kept = kept_columns(headings, widths, spare, there)
    clean = [[row[at] for at in kept] for row in clean]
    # build the pattern once, because a store may list ten thousand lines
    columns = [f"{{:{'>' if headings[at] in right else '<'}{widths[at]}}}" for at in kept]
    line = (" " * GAP).join(columns).format
    if not wrapped or there is None:
        return [line(*row).rstrip() for row in clean]
    room = max(LEAST_WRAPPED, there - width_of(widths, kept[:-1]) - GAP)
    empty = [""] * (len(kept) - 1)
    parts = ((row, textwrap.wrap(row[-1], room) or [""]) for row in clean)
    return [line(*(empty if at else row[:-1]), part).rstrip() for row, texts in parts for at, part in enumerate(texts)]


def width_of(widths: Sequence[int], columns: Sequence[int]) -> int:
    """Characters of these columns side by side."""
    return sum(widths[at] + GAP for at in columns) - GAP


def kept_columns(headings: Sequence[str], widths: Sequence[int], spare: Sequence[str], room: int | None) -> list[int]:
    """Numbers of the columns that fit into `room` characters, two between them; None is room for all."""
    kept = list(range(len(headings)))
    for name in spare:
        if room is None or width_of(widths, kept) <= room:
            break
        kept = [at for at in kept if headings[at] != name]
    return kept


def short_path(folder: str) -> str:
    """A path as it can be typed from here: below the working folder, or below the home folder."""
    path = below_here(Path(folder))
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)


def minute(moment: str) -> str:
    """Format an ISO 8601 UTC time as `2026-01-31 12:00 UTC`."""
    return moment[:16].replace("T", " ") + " UTC"
