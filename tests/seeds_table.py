"""The table of seeds.yaml, read and checked: what the guides promise, and what happens with it today."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from support import ROOT

TABLE = Path(__file__).with_name("seeds.yaml")
STATES = ("works", "differs", "missing")
HOWS = ("run", "dry-run", "parse", "golden", "library", "cluster", "document")
# How many ids each letter has: the four guides, the project as a whole, and the guides' contradictions.
LAST = {"A": 36, "B": 37, "C": 21, "D": 20, "E": 6, "X": 14}
KEYS = {"id", "what", "how", "state", "why", "command", "folder", "slow", "test", "file", "expect"}


@dataclass(frozen=True)
class Row:
    """One promise. It is shown by a command, by a test, by a file of the repository, or only stated."""

    ids: tuple[str, ...]
    what: str
    how: str
    state: str
    why: str = ""
    command: str = ""
    folder: str = ""
    slow: bool = False
    test: str = ""
    file: str = ""
    exit: int | None = None
    text: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return "+".join(self.ids)

    @property
    def shown_by(self) -> str:
        """What a reader can run or open to see it."""
        return self.command or self.test or self.file


def read_table() -> tuple[list[Row], dict[str, str]]:
    """The rows, and the text of each file that their commands find in their folder."""
    content = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return [_row(entry) for entry in content["rows"]], content["files"]


def _row(entry: dict[str, Any]) -> Row:
    ids = tuple([entry["id"]] if isinstance(entry["id"], str) else entry["id"])
    assert set(entry) <= KEYS, f"{ids}: unknown keys {set(entry) - KEYS}"
    assert all(re.fullmatch(r"[ABCDEX]\d\d(\.\d+)?", name) for name in ids), f"{ids}: not ids"
    expect = entry.get("expect", {})
    assert set(expect) <= {"exit", "text", "values"}, f"{ids}: unknown keys in expect"
    text = expect.get("text", [])
    row = Row(
        ids=ids,
        text=(text,) if isinstance(text, str) else tuple(text),
        exit=expect.get("exit"),
        values=expect.get("values", {}),
        **{key: entry[key] for key in KEYS - {"id", "expect"} if key in entry},
    )
    _check(row)
    return row


def _check(row: Row) -> None:
    """A row says just enough: one way to see it, an exit code for a command, a reason where something is amiss."""
    assert row.how in HOWS and row.state in STATES, f"{row}: unknown how or state"
    assert bool(row.why) == (row.state != "works"), f"{row}: a reason belongs to what does not work, and only there"
    ways = [way for way in (row.command, row.test, row.file) if way]
    assert len(ways) <= 1, f"{row}: more than one way to see it"
    assert ways or row.how == "document", f"{row}: nothing to run or to open"
    assert (row.exit is not None) == bool(row.command), f"{row}: an exit code belongs to a command"
    assert not row.values or "--json" in row.command, f"{row}: values come from --json"
    if row.state == "works" and row.command:
        # A dry run where no data is prepared ends with 1; it still has to show what was promised.
        assert row.exit == 0 or row.text or row.values, f"{row}: an exit code alone shows nothing"
    if row.state == "missing" and row.command:
        assert row.exit != 0, f"{row}: what is missing cannot succeed"


def covered(rows: list[Row]) -> set[str]:
    """Ids without their suffixes."""
    return {name.partition(".")[0] for row in rows for name in row.ids}


def expected_ids() -> set[str]:
    return {f"{letter}{number:02d}" for letter, last in LAST.items() for number in range(1, last + 1)}


def in_repository(path: str) -> Path:
    return ROOT / path
