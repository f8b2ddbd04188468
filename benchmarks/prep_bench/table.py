"""The results for people, and as JSON."""

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from prep_bench.contest import Missing, Score

PACKAGES = ("gigatoken", "fastokens", "tokenizers", "transformers", "torch", "datasets", "datatrove", "trl", "ray",
            "pyarrow", "numpy", "orjson")  # fmt: skip


@dataclass
class Section:
    """One table. The first row that was measured is what the others are compared with."""

    title: str
    rows: list[Score | Missing]
    notes: list[str] = field(default_factory=list)


def machine() -> dict[str, Any]:
    return {
        "cpu": _first_after("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _first_after("/proc/meminfo", "MemTotal"),
        "system": platform.platform(),
        "load": " ".join(Path("/proc/loadavg").read_text().split()[:3]),
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
    }


def _first_after(path: str, key: str) -> str:
    lines = (line for line in Path(path).read_text().splitlines() if line.startswith(key))
    return next(lines, "unknown").partition(":")[2].strip() or "unknown"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def text_of(section: Section) -> str:
    """The table of a section."""
    scores = [row for row in section.rows if isinstance(row, Score)]
    lines = [f"\n{section.title}"]
    if scores:
        width = max(len(score.name) for score in scores)
        lines.append(f"  {'':{width}}  n  {'wall s':>7}{'ratio':>7}  {'CPU s':>7}{'ratio':>7}  {'peak MB':>8}"
                     f" {'largest':>8}  {'work s':>7}  result")  # fmt: skip
        lines += [_line(score, scores[0], width) for score in scores]
    lines += [f"  not run: {row.name}: {_short(row.why)}" for row in section.rows if isinstance(row, Missing)]
    return "\n".join([*lines, *(f"  {note}" for note in section.notes)])


def _line(score: Score, first: Score, width: int) -> str:
    peak, largest = ("" if mb is None else f"{mb:.0f}" for mb in (score.peak_mb, score.largest_mb))
    own = "" if score.own_s is None else f"{score.own_s:.2f}"
    wall, cpu = score.wall_s / first.wall_s, score.cpu_s / first.cpu_s
    return (
        f"  {score.name:{width}}  {score.runs}  {score.wall_s:7.2f}{wall:7.2f}  {score.cpu_s:7.2f}{cpu:7.2f}"
        f"  {peak:>8} {largest:>8}  {own:>7}  {'' if score.found is None else score.found}"
    )


def _short(why: str) -> str:
    lines = why.splitlines()
    return lines[0] if len(lines) == 1 else f"{lines[-1].strip()} (more in --json)"


def json_of(sections: Iterable[Section]) -> list[dict[str, Any]]:
    return [
        {
            "title": section.title,
            "rows": [{**row._asdict(), "missing": isinstance(row, Missing)} for row in section.rows],
            "notes": section.notes,
        }
        for section in sections
    ]
