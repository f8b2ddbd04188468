"""Sequences of all shards to packed rows, one Parquet file for each split.

sequences of 6, 4, 7 and 3 tokens, pack_size 10  ->  train.parquet: two rows of 10
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nemotron_data.formats.packed import Sequences
from nemotron_data.packing import pack
from nemotron_data.prep.pipeline import Prepared, ShardResult
from nemotron_data.sources.datasets import Part, realised_weights
from nemotron_data.split import SPLITS
from stages.sft.schema import SFTData


def open_splits(prepared: Prepared[SFTData]) -> tuple[Sequences, dict[str, int]]:
    """What the workers wrote, and the conversations of each split that has some, training first.

    Raises:
        UserError: nothing is left for training.
    """
    counts = sum((Counter(shard.figures["conversations"]) for shard in prepared.shards), Counter[str]())
    if not counts["train"]:
        raise prepared.nothing_left("conversation")
    sequences = Sequences.open([shard.folder for shard in prepared.shards])
    return sequences, {split: counts[split] for split in SPLITS if counts[split]}


def write_split(output: Path, split: str, sequences: Sequences, settings: SFTData) -> dict[str, Any]:
    """Pack one split and write `<split>.parquet`; gives its figures."""
    from nemotron_data.formats.packed import write_packed  # pyarrow takes a moment, and workers do without

    chosen = sequences.of_split(split)
    bins = pack(chosen.lengths, settings.pack_size, settings.algorithm, settings.seed)
    groups, compression = settings.parquet_row_group_size, settings.parquet_compression
    trained = write_packed(output / f"{split}.parquet", chosen, bins, groups, compression)
    tokens = int(chosen.lengths.sum())
    return {
        "sequences": len(chosen),
        "packed_rows": len(bins),
        "sequences_per_row": round(len(chosen) / len(bins), 3),
        "tokens": tokens,
        "trained_tokens": trained,
        "fill": tokens / (len(bins) * settings.pack_size),
    }


def shares(
    parts: Sequence[Part[SFTData]], shards: Sequence[ShardResult[SFTData]], sequences: Sequences
) -> list[dict[str, Any]]:
    """Each data set's share of the tokens, beside the one that its weight asks for; each row is used once."""
    by_folder = np.bincount(sequences.folder, weights=sequences.lengths, minlength=len(shards))
    tokens: Counter[str] = Counter()
    for shard, count in zip(shards, by_folder.tolist(), strict=True):
        if shard.part.only in (None, "train"):
            tokens[shard.part.name] += int(count)
    asked = {part.name: part.weight for part in parts if part.only in (None, "train")}
    shown = ("name", "weight", "asked_share", "tokens", "available_share")
    return [{key: row[key] for key in shown} for row in realised_weights(asked, tokens)]
