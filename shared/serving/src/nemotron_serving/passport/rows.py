"""Rows of the data that a model was trained on: some from training, and some held out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from nemotron_data.formats.bin_idx import IndexedDataset, read_blend
from nemotron_data.formats.packed import read_packed, sequences_of
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.lineage import ancestors, inputs

TRAINED, HELD_BACK = "train", ("test", "valid")
MOST_TRAINED, MOST_HELD_BACK = 16, 64
LONGEST = 1024
"""Tokens of a row that are looked at."""


@dataclass(frozen=True)
class Row:
    """Token ids (tokens), and which of them the model learnt to predict."""

    ids: np.ndarray
    learnt: np.ndarray


@dataclass(frozen=True)
class Rows:
    """Of one data artifact, or none.

    Attributes:
        held_back: the split that training did not use; "" if it used all.
        texts: of the trained rows, without special tokens.
    """

    data: str = ""
    trained: Sequence[Row] = ()
    held: Sequence[Row] = ()
    held_back: str = ""
    texts: Sequence[str] = ()


def rows_of(store: Store, model: Artifact, most_trained: int = MOST_TRAINED) -> Rows:
    """Rows of the newest data in a model's history; none if this store has none."""
    if model.is_external:
        return Rows()
    for one in (model, *reversed(ancestors(store, model))):
        for entry in inputs(store, one):
            if entry.role == "data" and entry.artifact is not None and entry.artifact.manifest.type in READERS:
                return _read(entry.artifact, most_trained)
    return Rows()


def _read(data: Artifact, most_trained: int) -> Rows:
    splits = READERS[data.manifest.type](data.path)
    held_back = next((name for name in HELD_BACK if name in splits), "")
    trained = list(islice(splits[TRAINED], most_trained)) if TRAINED in splits else []
    held = list(islice(splits[held_back], MOST_HELD_BACK)) if held_back else []
    tokenizer = TokenizerFolder(data.path / "tokenizer").tokenizer
    texts = [tokenizer.decode(row.ids.tolist()) for row in trained]
    return Rows(data.reference, trained, held, held_back, texts)


def _packed(folder: Path) -> dict[str, Iterator[Row]]:
    found = {}
    for split in (TRAINED, *HELD_BACK):
        if (file := folder / f"{split}.parquet").is_file():
            found[split] = (
                Row(ids[:LONGEST], learnt[:LONGEST]) for row in read_packed(file) for ids, learnt in sequences_of(row)
            )
    return found


def _indexed(folder: Path) -> dict[str, Iterator[Row]]:
    def of(entries: list[tuple[float, Path]]) -> Iterator[Row]:
        for _, prefix in entries:
            dataset = IndexedDataset(prefix)
            for number in range(len(dataset)):
                ids = np.asarray(dataset[number][:LONGEST])
                if len(ids) > 1:
                    yield Row(ids, np.arange(len(ids)) > 0)

    return {split: of(entries) for split, entries in read_blend(folder / "blend.json").items()}


READERS: dict[str, Any] = {"SFTDataArtifact": _packed, "PretrainBlendsArtifact": _indexed}
