"""The table of a campaign, for the terminal and for benchmarks/input.md."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from nemotron_prove import records
from nemotron_prove.input.campaign import Tally
from nemotron_prove.input.targets import target_named
from nemotron_prove.input.trial import FAILURES

RECORD = "input.md"
HEAD = """# Bad input

Made by `nemotron prove input --seed N --budget MINUTES --record`, the newest last. What the columns mean:
[docs/prove.md](../docs/prove.md#bad-input).
"""
COLUMNS = ("parser", "reads", "inputs", "damaged", "accepted", "refused", *FAILURES, "CPU s")


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
        total.damaged += tally.damaged
    yield _row(total, "all", "")


def _row(tally: Tally, name: str, about: str) -> str:
    counts = [tally.inputs, tally.damaged, *(tally.kinds[kind] for kind in ("accepted", "refused", *FAILURES))]
    return f"| {' | '.join([name, about, *(f'{count:,}' for count in counts), f'{tally.seconds:.0f}'])} |"


def add_to_record(tallies: Sequence[Tally], seed: int, wall: float) -> Path:
    """Append a section.

    Raises:
        UserError: this is no clone of the repository.
    """
    return records.add(RECORD, HEAD, f"seed {seed}, {wall / 60:.1f} minutes", records.code_to_record(), table(tallies))
