"""The bin/idx pairs that workers wrote, given their place in the output, or merged, and weighed for blend.json.

shards/000000/train.bin  ->  train/web/shard_000000.bin      one pair for each shard
                             train/web.bin                   one for each data set, with data_prep.merge=true
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nemotron_data.formats.bin_idx import merge_pairs
from nemotron_data.prep.losses import Totals, place
from nemotron_data.prep.pipeline import Prepared
from nemotron_data.sources.datasets import Part, realised_weights
from nemotron_data.split import SPLITS
from stages.pretrain.documents import Vocabulary
from stages.pretrain.schema import PretrainData

ENDINGS = (".bin", ".idx")


@dataclass(frozen=True)
class Pair:
    """A .bin and its .idx: where they are, what is in them, and their digests by ending."""

    split: str
    data_set: str
    prefix: Path
    documents: int
    tokens: int
    sha256: Mapping[str, str]

    def file(self, ending: str) -> Path:
        """One of the two files. A prefix may contain a dot, so `with_suffix` would be wrong."""
        return self.prefix.with_name(self.prefix.name + ending)


def collect_pairs(prepared: Prepared[PretrainData]) -> list[Pair]:
    """What the workers wrote, in the order of the input.

    Raises:
        UserError: nothing is left for training.
    """
    pairs = []
    for shard in prepared.shards:
        for split, written in shard.figures.items():
            digests = {ending: shard.digests[f"{split}{ending}"] for ending in ENDINGS}
            prefix = shard.folder / split
            pairs.append(Pair(split, shard.part.name, prefix, written["documents"], written["tokens"], digests))
    if not any(pair.split == "train" for pair in pairs):
        raise prepared.nothing_left("document")
    return pairs


def place_each(pairs: Sequence[Pair], output: Path) -> list[Pair]:
    """Give every pair its place, `<split>/<data set>/shard_000000`."""
    placed = []
    numbers: Counter[Path] = Counter()
    for pair in pairs:
        folder = output / pair.split / pair.data_set
        placed.append(replace(pair, prefix=folder / f"shard_{numbers[folder]:06d}"))
        numbers[folder] += 1
        for ending in ENDINGS:
            place(pair.file(ending), placed[-1].file(ending))
    return placed


def merge_each(pairs: Sequence[Pair], output: Path) -> list[Pair]:
    """Write one pair for each data set and split, `<split>/<data set>`. Their digests are taken when published."""
    merged = []
    for split, name in dict.fromkeys((pair.split, pair.data_set) for pair in pairs):
        found = [pair for pair in pairs if (pair.split, pair.data_set) == (split, name)]
        prefix = output / split / name
        merge_pairs([pair.prefix for pair in found], prefix)
        documents, tokens = sum(pair.documents for pair in found), sum(pair.tokens for pair in found)
        merged.append(Pair(split, name, prefix, documents, tokens, {}))
    return merged


def weigh(
    parts: Sequence[Part[PretrainData]], pairs: Sequence[Pair], output: Path
) -> dict[str, list[tuple[float, str]]]:
    """The entries of blend.json. A data set's weight is shared out over its shards by their tokens, so that together
    they get just that weight."""
    tokens: Counter[tuple[str, str]] = Counter()
    for pair in pairs:
        tokens[pair.split, pair.data_set] += pair.tokens
    entries: dict[str, list[tuple[float, str]]] = {}
    for pair in pairs:
        weight = weights_of(parts, pair.split)[pair.data_set] * pair.tokens / tokens[pair.split, pair.data_set]
        entries.setdefault(pair.split, []).append((weight, str(pair.prefix.relative_to(output))))
    return entries


def weights_of(parts: Sequence[Part[PretrainData]], split: str) -> dict[str, float]:
    """Weight by data set, of those that may have documents in a split."""
    return {part.name: part.weight for part in parts if part.only in (None, split)}


def describe(
    parts: Sequence[Part[PretrainData]], pairs: Sequence[Pair], totals: Totals, vocabulary: Vocabulary
) -> dict[str, Any]:
    """The contents of stats.json."""
    splits: dict[str, dict[str, int]] = {}
    weights = {}
    for split in (name for name in SPLITS if any(pair.split == name for pair in pairs)):
        tokens: Counter[str] = Counter()
        for pair in (pair for pair in pairs if pair.split == split):
            tokens[pair.data_set] += pair.tokens
        documents = sum(pair.documents for pair in pairs if pair.split == split)
        splits[split] = {"documents": documents, "tokens": tokens.total()}
        weights[split] = realised_weights(weights_of(parts, split), tokens)
    return {
        "total_tokens": sum(split["tokens"] for split in splits.values()),
        "splits": splits,
        "weights": weights,
        "counts": totals.as_metadata(),
        "vocab_size": vocabulary.size,
        "around_documents": {"before": list(vocabulary.before), "after": list(vocabulary.after)},
    }
