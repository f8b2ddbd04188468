"""megatron-core's own readers on the shards that our data preparation writes: every token, and the blend."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from megatron_support import prepared
from packed_support import add_document

from nemotron_data.formats.bin_idx import IndexedDataset, IndexedDatasetWriter, read_blend, write_blend
from nemotron_engines.megatron_bridge.translate import blend_per_split
from nemotron_shared.artifacts import Artifact

pytestmark = pytest.mark.megatron

LENGTH, VOCABULARY, EOD = 512, 512, 5


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return prepared("pretrain", tmp_path_factory.mktemp("shards") / "home", "data_prep.synthetic_documents=600")


@pytest.fixture(scope="module", autouse=True)
def one_process() -> Iterator[None]:
    """A blend asks for its rank as soon as it has a cache folder."""
    import torch

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_every_document_of_our_shards_reads_back_exactly(data: Artifact) -> None:
    from megatron.core.datasets.indexed_dataset import IndexedDataset as Theirs

    documents = 0
    for entries in read_blend(data.path / "blend.json").values():
        for _, prefix in entries:
            ours, theirs = IndexedDataset(prefix), Theirs(str(prefix))
            assert len(ours) == len(theirs)
            assert theirs.index.dtype == np.uint16
            for number in range(len(ours)):
                assert np.array_equal(ours[number], theirs[number])
                assert theirs[number][-1] == EOD
            documents += len(theirs)
    assert documents == 600


def build(path: Path, cache: Path, samples: int, seed: int = 3) -> list[Any]:
    """GPTDataset over a blend.json, by megatron-core's builder: train, valid and test."""
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    tokenizer = SimpleNamespace(eod=EOD, pad=0, vocab_size=VOCABULARY, unique_identifiers={"name": "tiny"})
    config = GPTDatasetConfig(
        random_seed=seed,
        sequence_length=LENGTH,
        blend_per_split=blend_per_split(path),
        split=None,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        path_to_cache=str(cache),
        mid_level_dataset_surplus=0.005,
        tokenizer=tokenizer,
    )
    return BlendedMegatronDatasetBuilder(GPTDataset, [samples, 8, 8], lambda: True, config).build()


def test_rows_are_cut_from_our_tokens_and_labels_are_one_ahead(data: Artifact, tmp_path: Path) -> None:
    entries = read_blend(data.path / "blend.json")["train"]
    stream = {window for _, prefix in entries for window in _documents(prefix)}
    train = build(data.path / "blend.json", tmp_path, 40)[0]
    for number in range(20):
        row = train[number]
        tokens, labels = row["tokens"].tolist(), row["labels"].tolist()
        assert len(tokens) == LENGTH
        assert labels[:-1] == tokens[1:]
        inner = _whole_documents(tokens)
        assert all(document in stream for document in inner)
    assert any(_whole_documents(train[number]["tokens"].tolist()) for number in range(20))


def _documents(prefix: Path) -> list[tuple[int, ...]]:
    dataset = IndexedDataset(prefix)
    return [tuple(dataset[number].tolist()) for number in range(len(dataset))]


def _whole_documents(tokens: list[int]) -> list[tuple[int, ...]]:
    """The documents that lie in a row from their first to their last token."""
    ends = [place for place, token in enumerate(tokens) if token == EOD]
    return [tuple(tokens[first + 1 : last + 1]) for first, last in pairwise(ends)]


def test_a_blend_is_mixed_by_its_weights(tmp_path: Path) -> None:
    train = build(_two_corpora(tmp_path, (0.7, 0.3)), tmp_path / "cache", 400)[0]
    second = np.mean([int(train[number]["tokens"][0]) >= 200 for number in range(400)])
    assert second == pytest.approx(0.3, abs=0.01)


def test_an_empty_split_gives_none_and_the_same_seed_the_same_rows(tmp_path: Path) -> None:
    path = _two_corpora(tmp_path, (0.5, 0.5))
    first, second = build(path, tmp_path / "a", 60), build(path, tmp_path / "b", 60)
    other = build(path, tmp_path / "c", 60, seed=4)
    assert first[1:] == [None, None]
    rows = [[one[0][number]["tokens"].tolist() for number in range(60)] for one in (first, second, other)]
    assert rows[0] == rows[1]
    assert rows[0] != rows[2]


def _two_corpora(folder: Path, weights: tuple[float, float]) -> Path:
    """Documents of tokens 10 to 199, and others of 200 to 399, each ending in EOD."""
    generator = np.random.default_rng(1)
    (folder / "train").mkdir()
    for name, low in (("first", 10), ("second", 200)):
        with IndexedDatasetWriter(folder / "train" / name, VOCABULARY) as writer:
            for _ in range(200):
                body = generator.integers(low, low + 190, size=generator.integers(20, 90))
                add_document(writer, np.append(body, EOD))
    names = ("train/first", "train/second")
    blend = list(zip(weights, names, strict=True))
    write_blend(folder / "blend.json", {"train": blend, "valid": [], "test": []})
    return folder / "blend.json"
