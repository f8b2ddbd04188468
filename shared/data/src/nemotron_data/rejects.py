"""Rows that data preparation refused, each with its place and the reason, in `rejected.jsonl`.

    {"file": "chats.jsonl", "line": 17, "reason": "unknown role", "detail": "", "snippet": "{\"messages\": [{\"ro..."}

Rows go to disk as they come; memory holds only one counter per reason.
"""

import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from nemotron_shared.atomic import open_atomic

SNIPPET_CHARACTERS = 200


def snippet_of(content: str | bytes) -> str:
    """The start of a bad row, at most `SNIPPET_CHARACTERS` long, with undecodable bytes written as \\xNN."""
    head = content[: 4 * SNIPPET_CHARACTERS]
    raw = head if isinstance(head, bytes) else head.encode("utf-8", "backslashreplace")
    text = raw.decode("utf-8", "backslashreplace")
    return text if len(text) <= SNIPPET_CHARACTERS else text[: SNIPPET_CHARACTERS - 3] + "..."


def entry_of(file: str, line: int, reason: str, snippet: str | bytes, detail: str) -> bytes:
    """A line of `rejected.jsonl`."""
    entry = {"file": file, "line": line, "reason": reason, "detail": snippet_of(detail), "snippet": snippet_of(snippet)}
    return json.dumps(entry, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


class Rejects:
    """Collects refused rows; the file at `path` appears when the block ends, also when nothing was refused.

    with Rejects(folder / "rejected.jsonl") as rejects:
        rejects.add("chats.jsonl", 17, "unknown role", '{"messages": [...')
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count_by_reason: Counter[str] = Counter()
        self._file: IO[Any] | None = None
        self._stack = ExitStack()

    @property
    def total(self) -> int:
        """How many rows were refused so far."""
        return self.count_by_reason.total()

    def add(self, file: str, line: int, reason: str, snippet: str | bytes = "", detail: str = "") -> None:
        """Record one refused row.

        `reason` is a short fixed phrase, because rows are counted by it; what varies goes into `detail`.
        """
        if self._file is None:
            raise ValueError("add() outside the with block")
        self._file.write(entry_of(file, line, reason, snippet, detail))
        self.count_by_reason[reason] += 1

    def __enter__(self) -> Self:
        self._file = self._stack.enter_context(open_atomic(self.path, "wb"))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file = None
        self._stack.__exit__(kind, error, trace)
