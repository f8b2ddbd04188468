"""Rejected rows of data preparation, with place and reason, in `rejected.jsonl`.

    {"file": "chats.jsonl", "line": 17, "reason": "unknown role", "detail": "", "snippet": "{\"messages\": [{\"ro..."}

`prep.reader` streams the file; memory holds only one counter per reason.
"""

import json

from nemotron_shared.system.errors import problem

SNIPPET_CHARACTERS = 200


class Refused(Exception):
    """A row that cannot be used. `reason` is a fixed phrase to count by; `detail` is about this row."""

    def __init__(self, reason: str, detail: str = "", remedy: str | None = None) -> None:
        self.finding = problem(f"{reason}: {detail}" if detail else reason, remedy)
        super().__init__(self.finding.message)
        self.reason = reason
        self.detail = detail


def snippet_of(content: str | bytes) -> str:
    """Start of a bad row, at most `SNIPPET_CHARACTERS` long, with undecodable bytes written as \\xNN."""
    head = content[: 4 * SNIPPET_CHARACTERS]
    raw = head if isinstance(head, bytes) else head.encode("utf-8", "backslashreplace")
    text = raw.decode("utf-8", "backslashreplace")
    return text if len(text) <= SNIPPET_CHARACTERS else text[: SNIPPET_CHARACTERS - 3] + "..."


def entry_of(file: str, line: int, reason: str, snippet: str | bytes, detail: str) -> bytes:
    """A line of `rejected.jsonl`."""
    entry = {"file": file, "line": line, "reason": reason, "detail": snippet_of(detail), "snippet": snippet_of(snippet)}
    return json.dumps(entry, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
