"""What a person should know before training on a set: each warning says what was found, where, and what it means."""

from collections.abc import Sequence
from dataclasses import dataclass

from nemotron_app.inspect.duplicates import Overlap
from nemotron_app.inspect.find import SPLITS, Located
from nemotron_app.inspect.measure import EVERYTHING, NOTHING, OUTSIDE, SplitFigures
from nemotron_app.inspect.pieces import Decoder

LEAST_FILL = 0.7
FEW_ROWS = 10
MEANING = {
    EVERYTHING: "the loss mask is all ones, so the model learns to write the user's part too",
    NOTHING: "the loss mask is all zeros, so they cost time and teach nothing",
    OUTSIDE: "this is not the tokenizer that the data was made with",
}


@dataclass(frozen=True)
class BlendShare:
    """One data set of a split: its share of the asked weights and of the tokens on disk, each from 0 to 1."""

    split: str
    data_set: str
    asked: float
    on_disk: float
    documents: int
    tokens: int


def blend_shares(figures: Sequence[SplitFigures]) -> list[BlendShare]:
    """Weights and realised shares, shards of one data set together; empty where nothing is blended."""
    found = []
    for split in figures:
        names = list(dict.fromkeys(part.data_set for part in split.parts))
        weights = sum(part.weight or 0.0 for part in split.parts)
        if len(names) < 2 or not weights:
            continue
        for name in names:
            parts = [part for part in split.parts if part.data_set == name]
            tokens = sum(part.tokens or 0 for part in parts)
            asked = sum(part.weight or 0.0 for part in parts) / weights
            documents = sum(part.examples for part in parts)
            found.append(BlendShare(split.name, name, asked, tokens / max(1, split.tokens), documents, tokens))
    return found


def warnings_of(
    located: Located, figures: Sequence[SplitFigures], overlaps: Sequence[Overlap], decoder: Decoder
) -> list[str]:
    """Everything that looks wrong, the most general first."""
    found = [f"differs from its manifest: {difference}" for difference in located.differences]
    if located.kind != "lines" and decoder.folder is None:
        found.append("no tokenizer lies beside the data, so ids are shown as numbers; give --tokenizer FOLDER")
    found += _missing_splits(located, figures)
    for split in figures:
        found += _problems(split, "documents" if located.kind == "documents" else "rows")
        found += _rows_over(split, located.pack_size)
        fill = split.fill(located.pack_size)
        if fill is not None and fill < LEAST_FILL and split.name == "train" and split.examples >= FEW_ROWS:
            found.append(f"{split.name}: packed rows are only {fill:.0%} full; the rest of each step is wasted")
    return found + [overlap.sentence for overlap in overlaps if overlap.found]


def _missing_splits(located: Located, figures: Sequence[SplitFigures]) -> list[str]:
    held = {split.name for split in figures if split.examples}
    named = {split.name for split in figures}
    wanted = set(SPLITS) & named if located.kind == "lines" else set(SPLITS)
    if located.kind == "lines" and "train" in named:
        wanted |= {"valid"}
    missing = [name for name in SPLITS if name in (wanted if located.whole else named) and name not in held]
    return [f"the split '{name}' holds nothing" for name in missing]


def _problems(split: SplitFigures, unit: str) -> list[str]:
    found = []
    for what, count in split.problems.counts.items():
        of = f"{count:,} of {split.seen:,} {unit}"
        places = ", ".join(split.problems.places[what])
        meaning = f"; {MEANING[what]}" if what in MEANING else ""
        found.append(f"{split.name}: {of}: {what}{meaning} (first: {places})")
    empty = split.lengths.get(0, 0)
    if empty and "a document without tokens" not in split.problems.counts:
        found.append(f"{split.name}: {empty:,} sequences without tokens")
    return found


def _rows_over(split: SplitFigures, pack_size: int | None) -> list[str]:
    over = sum(count for size, count in split.row_lengths.items() if pack_size and size > pack_size)
    if not over:
        return []
    return [
        f"{split.name}: {over:,} of {split.seen:,} rows are longer than the pack size of {pack_size:,} "
        f"(longest: {max(split.row_lengths):,})"
    ]
