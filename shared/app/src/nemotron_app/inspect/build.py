"""From a path or name to an inspection: figures, warnings, and the examples to show.

found = inspect_data("super3-sft-data:latest", Store.open(None), Options(rows=3))
print(found.summary()["splits"]["train"]["tokens"], found.warnings)
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemotron_app.inspect.duplicates import Copies, Overlap, occurrences
from nemotron_app.inspect.examples import Example, Split, examples_of
from nemotron_app.inspect.find import REJECTED, Located, locate
from nemotron_app.inspect.lines import LineSplit, key_of
from nemotron_app.inspect.measure import SplitFigures, measure
from nemotron_app.inspect.pieces import Decoder
from nemotron_app.inspect.refused import Reason, read_refused
from nemotron_app.inspect.sanity import blend_shares, warnings_of
from nemotron_shared.artifacts.names import DEFAULT_FAMILY
from nemotron_shared.artifacts.store import Store
from nemotron_shared.errors import UserError, did_you_mean

BUDGET = 20_000_000
WHAT = {"documents": "documents", "packs": "sequences", "lines": "questions"}


@dataclass(frozen=True)
class Options:
    """What to show and how closely to look.

    Args:
        split: the split to show examples of; None is the first.
        rows: how many examples to show.
        row: show this one instead, counted from 0.
        shuffle: seed to choose the examples by; None shows the first ones.
        budget: tokens to read per split for figures that no index gives; sets beyond it are sampled.
        against: a held-out set whose questions are looked for in the training text.
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
    """Everything that the page and the terminal show."""

    located: Located
    decoder: Decoder
    figures: list[SplitFigures]
    examples: list[Example]
    shown: str
    refused: list[Reason] | None
    copies: Copies
    overlaps: list[Overlap]
    warnings: list[str] = field(default_factory=list)

    @property
    def items(self) -> str:
        """What is compared to find duplicates: documents, sequences or questions."""
        return WHAT[self.located.kind]

    def summary(self) -> dict[str, Any]:
        """The figures as plain JSON values."""
        return {
            "title": self.located.title,
            "path": str(self.located.path),
            "kind": self.located.kind,
            "pack_size": self.located.pack_size,
            "vocab_size": self.decoder.vocab_size,
            "splits": {figures.name: _split_summary(figures, self.located.pack_size) for figures in self.figures},
            "blend": [share.__dict__ for share in blend_shares(self.figures)],
            "rejected": {reason.reason: reason.count for reason in self.refused or []},
            "duplicates": {"of": self.items, "compared": self.copies.items, "extra_copies": self.copies.within()},
            "overlap": [
                {
                    "split": found.split,
                    "what": found.what,
                    "how": found.how,
                    "found": found.found,
                    "compared": found.compared,
                }
                for found in self.overlaps
            ],
            "warnings": self.warnings,
        }


def inspect_data(target: str, store: Store, options: Options | None = None) -> Inspection:
    """Look at a prepared set.

    Raises:
        UserError: nothing is there, it is damaged, or a split or row that was asked for does not exist.
    """
    options = options or Options()
    located = locate(target, store, options.family, options.tokenizer)
    shown = _split_to_show(located, options.split)
    indices = choose(examples_of(shown), options, shown.name)
    stated = located.stats.get("vocab_size")
    decoder = Decoder(located.tokenizer, stated if isinstance(stated, int) else None)
    copies = Copies(decoder)
    figures = [measure(split, options.budget, decoder.vocab_size, copies) for split in located.splits]
    overlaps = [*copies.across(WHAT[located.kind]), *_against(located, store, options, decoder)]
    refused = read_refused(located.folder / REJECTED) if located.whole else None
    return Inspection(
        located, decoder, figures, shown.at(indices), shown.name, refused, copies, overlaps,
        warnings_of(located, figures, overlaps, decoder),
    )  # fmt: skip


def choose(count: int, options: Options, split: str) -> list[int]:
    """Numbers of the examples to show.

    Raises:
        UserError: the asked row does not exist.
    """
    if options.row is not None:
        if not 0 <= options.row < count:
            raise UserError(f"there is no row {options.row} in '{split}'", f"it has rows 0 to {count - 1}")
        return [options.row]
    wanted = min(max(0, options.rows), count)
    if options.shuffle is None:
        return list(range(wanted))
    return random.Random(options.shuffle).sample(range(count), wanted)


def _split_to_show(located: Located, name: str | None) -> Split:
    by_name = {split.name: split for split in located.splits}
    if not by_name:
        raise UserError(f"{located.path}: holds no documents", "run data preparation again with --force")
    if name is None:
        return located.splits[0]
    name = "valid" if name in {"val", "validation"} else name
    if name not in by_name:
        known = f"it has: {', '.join(by_name)}"
        raise UserError(f"{located.title} has no split '{name}'", did_you_mean(name, by_name, known))
    return by_name[name]


def _against(located: Located, store: Store, options: Options, decoder: Decoder) -> list[Overlap]:
    """Overlap with a held-out set of questions, split by split of it."""
    if options.against is None:
        return []
    held_out = locate(options.against, store, options.family)
    train = next((split for split in located.splits if split.name == "train"), located.splits[0])
    if decoder.folder is None and located.kind != "lines":
        raise UserError("--against compares text, and there is no tokenizer to decode with", "give --tokenizer FOLDER")
    found = []
    for split in held_out.splits:
        keys = _keys(split)
        if keys:
            name = f"{held_out.title} {split.name}"
            found.append(occurrences(keys, train, options.budget, decoder, name))
    if not found:
        raise UserError(f"{held_out.title}: no row has a 'key' or a 'question'", "give an evaluation or RL set")
    return found


def _keys(split: Split) -> Sequence[str]:
    return [key for row in split.rows() if (key := key_of(row))] if isinstance(split, LineSplit) else []


def _split_summary(figures: SplitFigures, pack_size: int | None) -> dict[str, Any]:
    ordered = sorted(figures.lengths)
    return {
        "examples": figures.examples,
        "tokens": figures.tokens,
        "seen": figures.seen,
        "sample": figures.sample,
        "sequences_seen": figures.sequences,
        "tokens_seen": figures.seen_tokens,
        "trained_tokens_seen": figures.trained,
        "fill": figures.fill(pack_size),
        "shortest": ordered[0] if ordered else None,
        "longest": ordered[-1] if ordered else None,
        "agents": dict(figures.agents),
        "problems": dict(figures.problems.counts),
    }
