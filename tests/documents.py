"""Read the project's Markdown: fenced blocks, the commands in them, links, headings and tables of settings."""

import re
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from support import ROOT, STAGES

DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "shared").glob("*/README.md")),
    *(ROOT / "stages" / stage / "README.md" for stage in STAGES),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^```(\w*) ?(.*)$")
SEPARATORS = {"&&", "||", ";", "|"}
SHOWN = re.compile(
    r"(?:\$ )?(?:[A-Z_]+=\S+ )*(?:uv run )?"
    r"(?:(?:nemotron|python3?|torchrun|pytest|uv|pip|git|docker|apptainer|enroot) |ci/\S+\.sh )"
)
"""How a command begins that stands in a block of another language, such as a table of commands."""


@dataclass(frozen=True)
class Block:
    """A fenced block: ```` ```jsonl chats.jsonl ```` has the language `jsonl` and the title `chats.jsonl`."""

    place: str
    language: str
    title: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


@dataclass(frozen=True)
class Command:
    """One command as a reader would type it, without `uv run`, and all the places that have it."""

    words: tuple[str, ...]
    places: tuple[str, ...]
    is_shell: bool = True
    """Whether it stands in a bash block; all others are only shown."""

    def __str__(self) -> str:
        return shlex.join(self.words)


def name_of(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def blocks(document: Path) -> list[Block]:
    """Every fenced block of a document."""
    found: list[Block] = []
    opened: tuple[int, str, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), start=1):
        fence = FENCE.match(line)
        if opened is None and fence:
            opened, lines = (number, fence[1], fence[2]), []
        elif opened and line == "```":
            found.append(Block(f"{name_of(document)}:{opened[0] + 1}", opened[1], opened[2], tuple(lines)))
            opened = None
        elif opened:
            lines.append(line)
    assert opened is None, f"{name_of(document)}:{opened and opened[0]}: a block that does not end"
    return found


def all_blocks(language: str) -> list[Block]:
    """Blocks of one language, of all documents."""
    return [block for document in DOCUMENTS for block in blocks(document) if block.language == language]


def commands() -> list[Command]:
    """Every different command of the bash blocks."""
    places: dict[tuple[str, ...], list[str]] = {}
    for block in all_blocks("bash"):
        for number, line in enumerate(block.lines):
            name, _, first = block.place.rpartition(":")
            for words in _split(line):
                places.setdefault(words, []).append(f"{name}:{int(first) + number}")
    return [Command(words, tuple(where)) for words, where in places.items()] + shown_commands(places.keys())


def shown_commands(known: Collection[tuple[str, ...]]) -> list[Command]:
    """Commands in blocks of text, where what they mean follows after two spaces; without those of bash blocks."""
    places: dict[tuple[str, ...], list[str]] = {}
    for block in all_blocks("text") + all_blocks(""):
        for line in block.lines:
            if SHOWN.match(line):
                typed = re.split(r"\s{2,}", line.removeprefix("$ "))[0]
                for words in _split(typed):
                    places.setdefault(words, []).append(block.place)
    return [Command(words, tuple(where), False) for words, where in places.items() if words not in known]


def _split(line: str) -> Iterator[tuple[str, ...]]:
    """Commands of one line: comments, `uv run` and what joins commands taken away."""
    words: list[str] = []
    for word in [*shlex.split(line, comments=True), ";"]:
        if word not in SEPARATORS:
            words.append(word)
        elif words:
            yield tuple(words[2:] if words[:2] == ["uv", "run"] else words)
            words = []


def prose(document: Path) -> str:
    """The text outside of fenced blocks."""
    return re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(document: Path) -> set[str]:
    """What `#...` can point to, as GitHub names headings."""
    headings = re.findall(r"^#+ (.+)$", prose(document), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def tables(document: Path, first_cells: str) -> list[list[list[str]]]:
    """Tables whose header begins with `first_cells`, each a list of rows of cells."""
    found: list[list[list[str]]] = []
    inside = False
    for line in document.read_text(encoding="utf-8").splitlines():
        if line.startswith(first_cells):
            inside = True
            found.append([])
        elif inside and line.startswith("|"):
            if not line.startswith("|--"):
                found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        else:
            inside = False
    return found
