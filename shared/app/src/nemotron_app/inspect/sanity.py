"""Warnings about a data set, shown before training on it: what was found, where, and what it means."""

from collections.abc import Sequence
from dataclasses import dataclass

from nemotron_app.inspect.duplicates import Overlap
from nemotron_app.inspect.find import SPLITS, PreparedSet
from nemotron_app.inspect.measure import EVERYTHING, NOTHING, OUTSIDE, SplitStatistics
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
    """One data set of a split: its share of the requested weights and of the tokens on disk, each from 0 to 1."""

    split: str
    data_set: str
    asked: float
    on_disk: float
    documents: int
    tokens: int


def blend_shares(splits: Sequence[SplitStatistics]) -> list[BlendShare]:
    """Requested and actual weights by data set, with its shards combined; empty if nothing is blended."""
    found = []
    for split in splits:
        names = list(dict.fromkeys(file.data_set for file in split.files))
        weights = sum(file.weight or 0.0 for file in split.files)
        if len(names) < 2 or not weights:
            continue
        for name in names:
            files = [file for file in split.files if file.data_set == name]
            tokens = sum(file.tokens for file in files)
            asked = sum(file.weight or 0.0 for file in files) / weights
            documents = sum(file.examples for file in files)
            found.append(BlendShare(split.name, name, asked, tokens / max(1, split.tokens), documents, tokens))
    return found


def warnings_of(
    prepared: PreparedSet, splits: Sequence[SplitStatistics], overlaps: Sequence[Overlap], decoder: Decoder
) -> list[str]:
    """All warnings, the most general first."""
    found = [f"differs from its manifest: {difference}" for difference in prepared.differences]
    if prepared.kind != "lines" and decoder.folder is None:
        found.append("no tokenizer lies beside the data, so ids are shown as numbers; give --tokenizer FOLDER")
    named = {split.name for split in splits}
    wanted = named
    if prepared.is_whole:  # evaluations have a single split, RL sets at least two
        wanted = named | ({"valid"} if "train" in named else set()) if prepared.kind == "lines" else set(SPLITS)
    holding = {split.name for split in splits if split.examples}
    found += [f"the split '{name}' holds nothing" for name in SPLITS if name in wanted - holding]
    unit = "documents" if prepared.kind == "documents" else "rows"
    for split in splits:
        for what, count in split.problems.counts.items():
            meaning = f"; {MEANING[what]}" if what in MEANING else ""
            places = ", ".join(split.problems.places[what])
            found.append(f"{split.name}: {count:,} of {split.seen:,} {unit}: {what}{meaning} (first: {places})")
        empty = split.lengths[0]
        if empty and "a document without tokens" not in split.problems.counts:
            found.append(f"{split.name}: {empty:,} sequences without tokens")
        pack_size, fill = prepared.pack_size, split.fill(prepared.pack_size)
        over = sum(count for size, count in split.row_lengths.items() if pack_size and size > pack_size)
        if over:
            found.append(
                f"{split.name}: {over:,} of {split.seen:,} rows are longer than the pack size of {pack_size:,} "
                f"(longest: {max(split.row_lengths):,})"
            )
        if fill is not None and fill < LEAST_FILL and split.name == "train" and split.examples >= FEW_ROWS:
            found.append(f"{split.name}: packed rows are only {fill:.0%} full; the rest of each step is wasted")
    return found + [overlap.sentence for overlap in overlaps if overlap.found]
