"""What a training says of the data sets that it reads."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from packed_support import add_document

from nemotron_data.formats.bin_idx import IndexedDatasetWriter, write_blend
from stages.pretrain.engines.transformers.train import _rows


def told(folder: Path, train: dict[str, float]) -> list[str]:
    """The lines about the train split of a blend: weight by prefix."""
    said: list[str] = []
    for prefix in train:
        (folder / prefix).parent.mkdir(parents=True, exist_ok=True)
        with IndexedDatasetWriter(folder / prefix, vocab_size=100) as writer:
            add_document(writer, np.arange(50))
    write_blend(folder / "blend.json", {"train": [(weight, prefix) for prefix, weight in train.items()]})
    config = SimpleNamespace(train=SimpleNamespace(seq_length=8), run=SimpleNamespace(seed=1))
    task: Any = SimpleNamespace(
        config=config, input=lambda role: SimpleNamespace(path=folder), run=SimpleNamespace(say=said.append)
    )
    assert _rows(task, "train", 1000, vocab_size=100) is not None
    return said


def test_shares_are_those_of_data_sets_whatever_their_shards(tmp_path: Path) -> None:
    weights = {
        "train/web/shard_000000": 6.0,
        "train/web/shard_000001": 1.0,
        "train/code": 2.0,
        "train/a/b/shard_000000": 1,
    }
    assert told(tmp_path / "blend", weights) == ["train: web 69.9%, code 20.1%, a/b 10.0%"]
    assert told(tmp_path / "one", {"train/documents/shard_000000": 1.0, "train/documents/shard_000001": 2.0}) == []
