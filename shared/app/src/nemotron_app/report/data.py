"""What the report shows of a prepared data set: its row lengths, and the refused rows with reasons."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from nemotron_app.inspect.examples import Split
from nemotron_app.inspect.find import LENGTHS, REJECTED, find_set
from nemotron_app.inspect.histogram import histogram, quantile
from nemotron_app.inspect.refused import Reason, read_refused
from nemotron_app.report.bars import BarChart, Histogram, bar_chart
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.errors import UserError

BUDGET = 2_000_000
"""Tokens to read if no index provides the lengths; larger sets are sampled."""
WIDTH = 460


@dataclass(frozen=True)
class DataSet:
    """`lengths` of the training split, or of all tasks; `refused` rows by reason; `problem` if it cannot be read."""

    lengths: BarChart | None = None
    median: int = 0
    longest: int = 0
    refused: list[Reason] = field(default_factory=list)
    problem: str | None = None


def look_at(artifact: Artifact, store: Store, family: str) -> DataSet:
    """Read lengths and refused rows of a data artifact. Damage is shown in the report and does not stop it."""
    try:
        found = find_set(str(artifact.path), store, family)
        refused = read_refused(found.folder / REJECTED) or []
        splits = [split for split in found.splits if split.name == "train"] or list(found.splits)
        lengths, sampled = _lengths(splits)
    except UserError as error:
        return DataSet(problem=str(error))
    bins = histogram(lengths)
    title, unit = LENGTHS[found.kind]
    note = f"{splits[0].name if len(splits) == 1 else 'all tasks'}{f', {sampled}' if sampled else ''}"
    drawn = bar_chart(Histogram(title, unit, bins, note, "base"), WIDTH) if bins else None
    return DataSet(drawn, quantile(lengths, 0.5), max(lengths, default=0), refused)


def _lengths(splits: Sequence[Split]) -> tuple[Counter[int], str]:
    """Number of sequences by length, and a note if they were sampled for lack of an index."""
    found, notes = Counter[int](), []
    for split in splits:
        known = split.lengths()
        if known is None:
            notes.append(split.sample_note(BUDGET) or "")
            known = Counter[int]()
            for example in split.scan(BUDGET):
                known.update(len(sequence.ids) for sequence in example.sequences)
                known.update([len(example.question)] if not example.sequences and example.question else [])
        found += known
    return found, next(filter(None, notes), "")
