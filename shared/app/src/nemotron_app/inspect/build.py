"""Inspect a path or artifact: statistics, warnings, and the examples to show.

found = inspect_data("super3-sft-data:latest", Store.open(None), Options(rows=3))
print(found.summary()["splits"]["train"]["tokens"], found.warnings)
"""

import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nemotron_app.inspect.duplicates import Copies, Overlap, occurrences
from nemotron_app.inspect.examples import Example, Split
from nemotron_app.inspect.find import OTHER_NAMES, REJECTED, PreparedSet, find_set
from nemotron_app.inspect.lines import LineSplit
from nemotron_app.inspect.measure import SplitStatistics, measure
from nemotron_app.inspect.pieces import Decoder
from nemotron_app.inspect.refused import Reason, read_refused
from nemotron_app.inspect.sanity import blend_shares, warnings_of
from nemotron_shared.artifacts.names import DEFAULT_FAMILY
from nemotron_shared.artifacts.store import Store
from nemotron_shared.errors import UserError, did_you_mean

BUDGET = 20_000_000
ITEMS = {"documents": "documents", "packs": "sequences", "lines": "questions"}


@dataclass(frozen=True)
class Options:
    """What to show, and how thoroughly to inspect.

    Args:
        split: the split to show examples of; None is the first.
        rows: how many examples to show.
        row: show this one instead, counted from 0.
        shuffle: seed for choosing examples; None shows the first ones.
        budget: tokens to read per split for statistics that no index provides; larger sets are sampled.
        against: a held-out set whose questions are searched for in the training text.
    """

    split: str | None = None
    rows: int = 5
    row: int | None = None
    shuffle: int | None = None
    budget: int = BUDGET
    against: str | None = None
    tokenizer: Path | None = None
    family: str = DEFAULT_FAMILY


@dataclass(frozen=True)
class Inspection:
    """Everything that the page and the terminal show; `shown` names the split that the examples are from."""

    prepared: PreparedSet
    decoder: Decoder
    splits: list[SplitStatistics]
    examples: list[Example]
    shown: str
    refused: list[Reason] | None
    copies: Copies
    overlaps: list[Overlap]
    warnings: list[str]

    @property
    def items(self) -> str:
        """The unit that is compared to find duplicates."""
        return ITEMS[self.prepared.kind]

    def summary(self) -> dict[str, Any]:
        """The statistics as plain JSON values."""
        splits = {}
        for split in self.splits:
            splits[split.name] = {
                "examples": split.examples,
                "tokens": split.tokens,
                "seen": split.seen,
                "sample": split.sample,
                "sequences_seen": split.sequences,
                "tokens_seen": split.seen_tokens,
                "trained_tokens_seen": split.trained,
                "fill": split.fill(self.prepared.pack_size),
                "shortest": min(split.lengths, default=None),
                "longest": max(split.lengths, default=None),
                "agents": split.agents,
                "problems": split.problems.counts,
            }
        overlaps = [asdict(overlap) for overlap in self.overlaps]
        return {
            "title": self.prepared.title,
            "path": str(self.prepared.path),
            "kind": self.prepared.kind,
            "pack_size": self.prepared.pack_size,
            "vocab_size": self.decoder.vocab_size,
            "splits": splits,
            "blend": [asdict(share) for share in blend_shares(self.splits)],
            "rejected": {reason.reason: reason.count for reason in self.refused or []},
            "duplicates": {
                "of": self.items,
                "compared": self.copies.kept.total(),
                "extra_copies": self.copies.within(),
            },
            "overlap": [{key: value for key, value in one.items() if key != "examples"} for one in overlaps],
            "warnings": self.warnings,
        }


def inspect_data(target: str, store: Store, options: Options | None = None) -> Inspection:
    """Inspect a prepared set.

    Raises:
        UserError: not found, damaged, or without the requested split or row.
    """
    options = options or Options()
    prepared = find_set(target, store, options.family, options.tokenizer)
    by_name = {split.name: split for split in prepared.splits}
    if not by_name:
        raise UserError(f"{prepared.path}: holds no documents", "run data preparation again with --force")
    wanted = options.split or next(iter(by_name))
    wanted = OTHER_NAMES.get(wanted, wanted)
    if wanted not in by_name:
        known = f"it has: {', '.join(by_name)}"
        raise UserError(f"{prepared.title} has no split '{wanted}'", did_you_mean(wanted, by_name, known))
    shown = by_name[wanted]
    if options.row is not None and not 0 <= options.row < shown.examples:
        raise UserError(f"there is no row {options.row} in '{wanted}'", f"it has rows 0 to {shown.examples - 1}")
    indices, count = range(shown.examples), min(max(0, options.rows), shown.examples)
    if options.row is not None:
        chosen = [options.row]
    else:
        chosen = indices[:count] if options.shuffle is None else random.Random(options.shuffle).sample(indices, count)
    stated = prepared.stats.get("vocab_size")
    decoder = Decoder(prepared.tokenizer, stated if isinstance(stated, int) else None)
    copies = Copies(decoder)
    splits = [measure(split, options.budget, decoder.vocab_size, copies) for split in prepared.splits]
    refused = read_refused(prepared.folder / REJECTED) if prepared.is_whole else None
    overlaps = copies.across(ITEMS[prepared.kind])
    if options.against is not None:
        if decoder.folder is None and prepared.kind != "lines":
            raise UserError(
                "--against compares text, and there is no tokenizer to decode with", "give --tokenizer FOLDER"
            )
        train = by_name.get("train", prepared.splits[0])
        overlaps += _overlaps_with(find_set(options.against, store, options.family), train, options.budget, decoder)
    return Inspection(
        prepared, decoder, splits, shown.at(chosen), wanted, refused, copies, overlaps,
        warnings_of(prepared, splits, overlaps, decoder),
    )  # fmt: skip


def _overlaps_with(held_out: PreparedSet, train: Split, budget: int, decoder: Decoder) -> list[Overlap]:
    """Search for the questions of a held-out set in the training text, one result per held-out split."""
    found = []
    for split in held_out.splits:
        keys = split.keys() if isinstance(split, LineSplit) else []
        if keys:
            found.append(occurrences(keys, train, budget, decoder, f"{held_out.title} {split.name}"))
    if not found:
        raise UserError(f"{held_out.title}: no row has a 'key' or a 'question'", "give an evaluation or RL set")
    return found
