"""Rows refused by data preparation, counted by reason, with a few examples of each.

{"file": "chats.jsonl", "line": 17, "reason": "unknown role", "detail": "", "snippet": "{\\"messages\\": ..."}
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from nemotron_shared.errors import UserError

EXAMPLES = 3


@dataclass
class Reason:
    """A reason for refusing rows, their number, and the first of them as (file:line, detail, start of the row)."""

    reason: str
    count: int = 0
    examples: list[tuple[str, str, str]] = field(default_factory=list)


def read_refused(path: Path) -> list[Reason] | None:
    """Reasons, most frequent first; None if the file does not exist.

    Raises:
        UserError: a line does not have the format that data preparation writes.
    """
    if not path.is_file():
        return None
    found: dict[str, Reason] = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
                reason, place = row["reason"], f"{row['file']}:{row['line']}"
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise UserError(f"{path}:{number}: not a refused row: {error}", "prepare the data again") from error
            entry = found.setdefault(str(reason), Reason(str(reason)))
            entry.count += 1
            if len(entry.examples) < EXAMPLES:
                entry.examples.append((place, str(row.get("detail", "")), str(row.get("snippet", ""))))
    return sorted(found.values(), key=lambda reason: (-reason.count, reason.reason))
