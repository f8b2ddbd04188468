"""The README's table of the tiny run, from the records of benchmarks/tiny_run.py.

Uses the newest section for each machine and version of Python, if its stages make as many steps as those of the newest
section overall: figures for another tiny run would not be comparable.
"""

import re
import statistics
from pathlib import Path
from typing import NamedTuple

SECTION = re.compile(
    r"^## (?P<date>\S+), (?P<code>\w+)\n\n(?P<machine>.+), (?P<cores>\d+) cores, Python (?P<python>\S+); "
    r"(?P<steps>[\d +]+) steps\n\n(?P<table>(?:\|.*\n)+)",
    re.MULTILINE,
)
HEADINGS = ("machine", "runs", "base", "after SFT", "after RL", "time", "CPU time")
SHAPES = ("{:.1f}%", "{:.0f}%", "{:.0f}%", "{:.0f} s", "{:.0f} s")


class Section(NamedTuple):
    """Runs of the same code on the same machine."""

    machine: str
    steps: str
    rows: list[list[float]]  # per seed: three shares in percent, wall and CPU seconds


def runs_table(records: Path) -> str:
    """Table rows with medians, and minima and maxima in brackets."""
    found = [_section(match) for match in SECTION.finditer(records.read_text(encoding="utf-8"))]
    newest = {section.machine: section for section in found if section.steps == found[-1].steps}
    lines = [f"| {' | '.join(HEADINGS)} |", f"|---|{'--:|' * (len(HEADINGS) - 1)}"]
    for section in newest.values():
        figures = zip(*section.rows, strict=True)
        cells = [_spread(values, shape) for values, shape in zip(figures, SHAPES, strict=True)]
        lines.append(f"| {' | '.join([section.machine, str(len(section.rows)), *cells])} |")
    return "\n".join(lines)


def _section(match: re.Match[str]) -> Section:
    rows = []
    for line in match["table"].splitlines()[2:]:
        cells = line.strip("| ").split("|")[1:]
        rows.append([float(cell.strip().rstrip("%")) for cell in cells])
    return Section(f"{match['machine']}, {match['cores']} cores, Python {match['python']}", match["steps"], rows)


def _spread(values: tuple[float, ...], shape: str) -> str:
    middle, low, high = (shape.format(value) for value in (statistics.median(values), min(values), max(values)))
    return middle if low == high else f"{middle} ({low.rstrip('% s')} to {high.rstrip('% s')})"
