"""One bin/idx pair out of many, for readers that want a single prefix."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nemotron_data.formats.bin_idx import IndexedDataset, pair_of, write_index
from nemotron_shared.atomic import open_atomic
from nemotron_shared.errors import UserError

COPY_BYTES = 16 << 20


def merge_pairs(prefixes: Sequence[Path], target: Path) -> None:
    """Write the sequences of all pairs, in order, as one pair at the prefix `target`.

    Raises:
        UserError: a pair is missing or damaged, or holds ids of another dtype than the first.
    """
    pairs = [IndexedDataset(prefix) for prefix in prefixes]
    if not pairs:
        raise ValueError("nothing to merge")
    other = next((pair for pair in pairs if pair.dtype != pairs[0].dtype), None)
    if other is not None:
        raise UserError(f"{other.prefix}: {other.dtype} ids, not {pairs[0].dtype} like the others",
                        "merge only what was made with one tokenizer")  # fmt: skip
    target_bin, target_idx = pair_of(target)
    target_idx.unlink(missing_ok=True)
    with open_atomic(target_bin) as merged:
        for prefix in prefixes:
            with pair_of(prefix)[0].open("rb") as source:
                while block := source.read(COPY_BYTES):
                    merged.write(block)
    write_index(target_idx, np.concatenate([pair.lengths for pair in pairs]), pairs[0].dtype)
