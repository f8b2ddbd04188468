"""Results for people, and as JSON."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nemotron_shared.step.records import git_commit
from prep_bench.contest import Missing, Score

REPOSITORY = Path(__file__).resolve().parents[2]

PACKAGES = ("gigatoken", "fastokens", "tokenizers", "transformers", "torch", "datasets", "datatrove", "megatron-core",
            "trl", "ray", "pyarrow", "numpy", "orjson")  # fmt: skip
ASK = """import json, sys
from importlib import metadata
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


@dataclass
class Section:
    """One table. The others are compared with the first row that was measured."""

    title: str
    rows: list[Score | Missing]
    notes: list[str] = field(default_factory=list)


def machine(peer_python: str) -> dict[str, Any]:
    """Description of the machine and the software."""
    return {
        "code": git_commit(REPOSITORY) or "of no commit",
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "cpu": _first_after("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _first_after("/proc/meminfo", "MemTotal"),
        "system": platform.platform(),
        "load": " ".join(Path("/proc/loadavg").read_text().split()[:3]),
        "python": platform.python_version(),
        "packages": versions(sys.executable),
        "peers' packages": {} if peer_python == sys.executable else versions(peer_python),
    }


def versions(python: str) -> dict[str, str]:
    """Versions of the packages that the programs use, if this interpreter has them."""
    command = [python, "-c", ASK, *PACKAGES]
    return json.loads(subprocess.run(command, cwd="/", capture_output=True, check=True).stdout)


def _first_after(path: str, key: str) -> str:
    lines = (line for line in Path(path).read_text().splitlines() if line.startswith(key))
    return next(lines, "unknown").partition(":")[2].strip() or "unknown"


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
