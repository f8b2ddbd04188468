"""The bin/idx pairs that workers wrote, given their place in the output, or merged, and weighed for blend.json.

shards/000000/train.bin  ->  train/web/shard_000000.bin      one pair for each shard
                             train/web.bin                   one for each data set, with data_prep.merge=true
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nemotron_data.formats.bin_idx import SPLITS
from nemotron_data.formats.bin_idx_merge import merge_pairs
from nemotron_data.prep.merge import Totals, place
from nemotron_data.prep.pipeline import Prepared
from nemotron_data.sources.blends import realised_weights
from nemotron_data.sources.datasets import Part
from stages.pretrain.schema import PretrainData

ENDINGS = (".bin", ".idx")


@dataclass(frozen=True)
class Pair:
    """A .bin and its .idx: where they are, what is in them, and their digests by ending."""

    prefix: Path
    documents: int
    tokens: int
    sha256: Mapping[str, str]

    def file(self, ending: str) -> Path:
        """One of the two files; a prefix may hold a dot, so this is no `with_suffix`."""
        return self.prefix.with_name(self.prefix.name + ending)


Pairs = dict[str, dict[str, list[Pair]]]
"""By split, by data set."""


def collect_pairs(prepared: Prepared[PretrainData]) -> Pairs:
    """What the workers wrote, in the order of the input.

    Raises:
        UserError: nothing is left for training.
    """
    pairs: Pairs = {split: {} for split in SPLITS if any(split in shard.figures for shard in prepared.shards)}
    for shard in prepared.shards:
        for split, figures in shard.figures.items():
            digests = {ending: shard.digests[f"{split}{ending}"] for ending in ENDINGS}
            pair = Pair(shard.folder / split, figures["documents"], figures["tokens"], digests)
            pairs[split].setdefault(shard.part.name, []).append(pair)
    if "train" not in pairs:
        raise prepared.nothing_left("document")
    return pairs


def place_each(pairs: Pairs, output: Path) -> Pairs:
    """Give every pair its place, `<split>/<data set>/shard_000000`."""
    placed: Pairs = {split: {} for split in pairs}
    for split, sets in pairs.items():
        for name, found in sets.items():
            prefixes = [output / split / name / f"shard_{number:06d}" for number in range(len(found))]
            placed[split][name] = [replace(pair, prefix=new) for pair, new in zip(found, prefixes, strict=True)]
            for pair, new in zip(found, placed[split][name], strict=True):
                for ending in ENDINGS:
                    place(pair.file(ending), new.file(ending))
    return placed


def merge_each(pairs: Pairs, output: Path) -> Pairs:
    """Write one pair for each data set and split, `<split>/<data set>`. Their digests are taken when published."""
    merged: Pairs = {split: {} for split in pairs}
    for split, sets in pairs.items():
        for name, found in sets.items():
            prefix = output / split / name
            merge_pairs([pair.prefix for pair in found], prefix)
            whole = Pair(prefix, sum(pair.documents for pair in found), sum(pair.tokens for pair in found), {})
            merged[split][name] = [whole]
    return merged


def digests_of(pairs: Pairs, output: Path) -> dict[str, str]:
    """SHA-256 by name in the output, of the files that workers wrote."""
    every = (pair for sets in pairs.values() for found in sets.values() for pair in found)
    return {
        pair.file(ending).relative_to(output).as_posix(): digest
        for pair in every
        for ending, digest in pair.sha256.items()
    }


def weigh(parts: Sequence[Part[PretrainData]], pairs: Pairs, output: Path) -> dict[str, list[tuple[float, str]]]:
    """The entries of blend.json. A data set's weight is shared out over its shards by their tokens, so that together
    they get just that weight."""
    return {
        split: [
            (weight * pair.tokens / sum(other.tokens for other in sets[name]), str(pair.prefix.relative_to(output)))
            for name, weight in weights_of(parts, split).items()
            for pair in sets.get(name, ())
        ]
        for split, sets in pairs.items()
    }


def weights_of(parts: Sequence[Part[PretrainData]], split: str) -> dict[str, float]:
    """Weight by data set, of those that may have documents in a split."""
    return {part.name: part.weight for part in parts if part.only in (None, split)}


def describe(parts: Sequence[Part[PretrainData]], pairs: Pairs, totals: Totals, vocab_size: int) -> dict[str, Any]:
    """The contents of stats.json."""
    tokens = {
        split: {name: sum(pair.tokens for pair in found) for name, found in sets.items()}
        for split, sets in pairs.items()
    }
    documents = {split: sum(p.documents for found in sets.values() for p in found) for split, sets in pairs.items()}
    return {
        "total_tokens": sum(sum(sets.values()) for sets in tokens.values()),
        "splits": {split: {"documents": documents[split], "tokens": sum(tokens[split].values())} for split in pairs},
        "weights": {split: realised_weights(weights_of(parts, split), tokens[split]) for split in pairs},
        "counts": totals.as_metadata(),
        "vocab_size": vocab_size,
    }
