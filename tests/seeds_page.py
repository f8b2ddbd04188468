"""Write docs/seeds.md from seeds.yaml:

python tests/seeds_page.py
"""

from collections import Counter

from seeds_table import LAST, STATES, Row, read_table
from support import ROOT

PAGE = ROOT / "docs" / "seeds.md"

SECTIONS = {
    "A": "LoRA on Nemotron 3 Nano with NeMo Automodel, on one cluster",
    "B": "Nemotron 3 Super in four stages",
    "C": "Llama 3.3 Nemotron Super 49B: SFT and GRPO",
    "D": "Nemotron 3 Nano: GRPO on 32 nodes",
    "E": "What the four ask of the project as a whole",
    "X": "Where the guides contradict themselves or each other",
}

INTRODUCTION = """\
# The four guides, promise by promise

This project implements four public guides: LoRA on Nemotron 3 Nano with NeMo Automodel, the four-stage recipe of \
Nemotron 3 Super, SFT and GRPO of Llama 3.3 Nemotron Super 49B, and GRPO of Nemotron 3 Nano on 32 nodes. This page \
lists each of their command lines, keys, files, values, checks and expected results, and says what happens today.

- **works**: it does what the guide promises.
- **differs**: it does something else, for the reason given.
- **missing**: it is not there yet, and asking for it is an error.

`tests/test_seeds.py` runs every command below and compares exit code and output, so a promise that is broken, or \
kept without being claimed here, fails a test. The page is written by `tests/seeds_page.py` from `tests/seeds.yaml`; \
edit the table there.

How a row is seen: *run* on tiny data, *dry-run*, *parse* (the config composes and has the values), *golden* (the \
text of a script), *library* (the real library judges it, in its own environment), *cluster* (it needs Slurm), \
*document* (it is only stated).
"""


def page(rows: list[Row]) -> str:
    """The text of the page: counts, then one table for each guide."""
    parts = [INTRODUCTION, "\n".join(_counts(rows)) + "\n"]
    for letter, title in SECTIONS.items():
        lines = [f"## {title}", "", "| id | what | how | state | seen by | remark |", "|---|---|---|---|---|---|"]
        lines += [_line(row) for row in rows if row.ids[0].startswith(letter)]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _counts(rows: list[Row]) -> list[str]:
    """How many rows of each part are in each state."""
    lines = [f"| part | {' | '.join(STATES)} | all |", f"|---|{'--:|' * (len(STATES) + 1)}"]
    for letter, title in SECTIONS.items():
        lines.append(_count_line(f"{letter}: {title}", [row for row in rows if row.ids[0].startswith(letter)]))
    return [*lines, _count_line("**all**", rows)]


def _count_line(title: str, rows: list[Row]) -> str:
    found = Counter(row.state for row in rows)
    return f"| {title} | {' | '.join(str(found[state]) for state in STATES)} | {len(rows)} |"


def _line(row: Row) -> str:
    seen = f"`{row.shown_by}`".replace("|", "\\|") if row.shown_by else ""
    cells = (", ".join(row.ids), row.what, row.how, row.state, seen, row.why)
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    assert set(SECTIONS) == set(LAST)
    PAGE.write_text(page(read_table()[0]), encoding="utf-8")
