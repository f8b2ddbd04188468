"""The table of a campaign, for the terminal and for benchmarks/input.md."""

import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from nemotron_prove.input.campaign import Tally
from nemotron_prove.input.targets import target_named
from nemotron_prove.input.trial import FAILURES
from nemotron_shared.artifacts.artifact import utc
from nemotron_shared.atomic import write_text
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.machine import hardware

ROOT = Path(__file__).resolve().parents[5]
RECORD = "benchmarks/input.md"
HEAD = """# Bad input

Recorded campaigns, the oldest first. How one is made, and what the columns mean:
[docs/prove.md](../docs/prove.md#bad-input).
"""
COLUMNS = ("parser", "reads", "inputs", "accepted", "refused", *FAILURES, "CPU s")


def table(tallies: Sequence[Tally]) -> Iterator[str]:
    """Markdown: a row for each target, and one for all."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|---|---|{'--:|' * (len(COLUMNS) - 2)}"
    for tally in tallies:
        yield _row(tally, f"`{tally.target}`", target_named(tally.target).about)
    total = Tally("all")
    for tally in tallies:
        total.kinds += tally.kinds
        total.seconds += tally.seconds
    yield _row(total, "all", "")


def _row(tally: Tally, name: str, about: str) -> str:
    counts = [tally.inputs, *(tally.kinds[kind] for kind in ("accepted", "refused", *FAILURES))]
    return f"| {' | '.join([name, about, *(f'{count:,}' for count in counts), f'{tally.seconds:.0f}'])} |"


def add_to_record(tallies: Sequence[Tally], seed: int, wall: float) -> Path:
    """Append a section: code, machine, seed and figures.

    Raises:
        UserError: this is no clone of the repository.
    """
    if not (ROOT / "benchmarks").is_dir():
        raise UserError(f"there is no folder {ROOT / 'benchmarks'}", "record in a clone of the repository")
    file = ROOT / RECORD
    before = file.read_text(encoding="utf-8") if file.is_file() else HEAD
    machine = ", ".join(f"{name} {value}" for name, value in hardware().items())
    lines = [
        f"## {utc(time.time())}, seed {seed}",
        "",
        f"Code {_commit()}; {machine}; {wall / 60:.1f} minutes.",
        "",
        *table(tallies),
    ]
    write_text(file, before + "\n" + "\n".join(lines) + "\n")
    return file


def _commit() -> str:
    """The commit, and whether the tree differs from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True).stdout.strip()

    return f"{git('rev-parse', '--short', 'HEAD')}{' with changes' if git('status', '--porcelain', '-uno') else ''}"
