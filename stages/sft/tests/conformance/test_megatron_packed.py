"""Megatron-Bridge's own reader on the rows that our data preparation packs: which tokens it would train on.

A mask that is shifted twice, or not at all, breaks nothing and is seen nowhere but in the labels.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from megatron_support import prepared, task_of
from packed_support import pack_row, write_packed

from nemotron_data.formats.packed import PackedRow, read_packed
from nemotron_shared.artifacts import Artifact

pytestmark = pytest.mark.megatron

CHATS = (
    [("user", "Who lives in Oster?"), ("assistant", "Mira lives in Oster.")],
    [("system", "Be brief."), ("user", "2 + 3?"), ("assistant", "5"), ("user", "And 2 + 4?"), ("assistant", "6")],
    [("user", "Name a baker."), ("assistant", "Mira is a baker.")],
)
PACK = 64
OVERRIDES = (f"data_prep.pack_size={PACK}", "data_prep.split={train: 1.0, valid: 0.0, test: 0.0}")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("packed")
    rows = [{"messages": [{"role": role, "content": text} for role, text in chat]} for chat in CHATS]
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return prepared("sft", folder / "home", f"data_prep.source={folder / 'chats.jsonl'}", *OVERRIDES)


@pytest.fixture(scope="module")
def container(data: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from nemotron_engines.stand_ins.transformer_engine import install_stubs

    install_stubs()
    from nemotron_engines.megatron_bridge.translate import build_config

    return build_config(task_of("sft", "tiny", tmp_path_factory.mktemp("run"), data, "engine=megatron_bridge"))


@pytest.fixture(scope="module")
def reader(container: Any) -> Any:
    """The training split, as Bridge's builder makes it of our configuration."""
    return built(container)


def built(container: Any) -> Any:
    from megatron.bridge.data.builders.gpt_sft import GPTSFTDatasetBuilder
    from megatron.bridge.training.tokenizers.tokenizer import build_tokenizer

    return GPTSFTDatasetBuilder(container.dataset, build_tokenizer(container.tokenizer)).build()[0]


def batches(reader: Any, rows: list[PackedRow]) -> list[tuple[PackedRow, dict[str, Any]]]:
    """Each of our rows with the batch of one that the reader makes of it."""
    by_tokens = {tuple(row.input_ids.tolist()): row for row in rows}
    found = {}
    for index in range(len(reader)):
        item = reader[index]
        key = tuple(int(token) for token in item["input_ids"])
        found[key] = (by_tokens[key], reader.collate_fn([item]))
        if len(found) == len(by_tokens):
            break
    assert len(found) == len(rows)
    return list(found.values())


def test_the_trained_labels_are_the_answers_and_nothing_else(reader: Any, data: Artifact) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(data.path / "tokenizer")
    trained = []
    for _, batch in batches(reader, read_packed(data.path / "train.parquet")):
        labels, mask = batch["labels"][0], batch["loss_mask"][0].bool()
        trained += tokenizer.decode(labels[mask]).split("<|im_end|>")
    answers = [text for chat in CHATS for role, text in chat if role == "assistant"]
    assert sorted(text.removeprefix("<think></think>") for text in trained if text) == sorted(answers)


def test_each_sequence_arrives_without_its_last_input_and_with_its_own_boundary(reader: Any, data: Artifact) -> None:
    for row, batch in batches(reader, read_packed(data.path / "train.parquet")):
        starts, size = row.seq_start_id.tolist(), len(row.input_ids)
        spans = list(zip(starts, [*starts[1:], size], strict=True))
        tokens, labels, masks, positions = [], [], [], []
        for start, end in spans:
            tokens += row.input_ids[start : end - 1].tolist()
            labels += row.input_ids[start + 1 : end].tolist()
            masks += row.loss_mask[start : end - 1].tolist()
            positions += range(end - 1 - start)
        seen = size - len(spans)
        assert batch["tokens"][0, :seen].tolist() == tokens
        assert batch["labels"][0, :seen].tolist() == labels
        assert batch["loss_mask"][0, :seen].tolist() == masks
        assert batch["position_ids"][0, :seen].tolist() == positions
        assert not batch["loss_mask"][0, seen:].any()
        ends = [end - 1 - number for number, (_, end) in enumerate(spans)]
        assert batch["cu_seqlens_q"][0].tolist() == [0, *ends, PACK]


def test_the_reader_finds_no_fault_in_any_row(reader: Any, data: Artifact) -> None:
    for number, row in enumerate(read_packed(data.path / "train.parquet")):
        reader.validate_row(number, row.input_ids.tolist(), row.loss_mask.tolist(), row.seq_start_id.tolist())
    with pytest.raises(ValueError):
        reader.validate_row(0, [1, 2, 3], [0, 1], [0])


def test_reading_leaves_the_artifact_as_it_is(reader: Any, data: Artifact) -> None:
    assert len(reader) > 0
    assert sorted(path.name for path in data.path.iterdir() if path.is_dir()) == ["tokenizer"]


def test_rows_are_repeated_to_the_length_of_the_run(reader: Any, container: Any) -> None:
    assert len(reader) == container.train.train_iters * container.train.global_batch_size


A, B = ([11, 12, 13, 21, 22, 4], [0, 0, 0, 1, 1, 1]), ([14, 15, 23, 4], [0, 0, 1, 1])


@pytest.mark.parametrize(("shift", "trained"), [(0, [21, 22, 4, 23, 4]), (-1, [22, 4, 4]), (1, [13, 21, 22, 15, 23])])
def test_a_wrong_shift_would_be_seen_here(container: Any, tmp_path: Path, shift: int, trained: list[int]) -> None:
    """The right mask trains the answers; one shift less or more trains something else, without any error."""
    right = pack_row([A, B])
    masks = {0: right.loss_mask, -1: [*A[1], *B[1]], 1: [0, 1, 1, 1, 0, 0, 1, 1, 0, 0]}
    path = tmp_path / "train.parquet"
    write_packed(path, [A, B], [[0, 1]])
    if shift:
        _write_with_mask(path, right, list(masks[shift]))
    batch = _batch_of(container, path)
    labels, mask = batch["labels"][0], batch["loss_mask"][0].bool()
    assert labels[mask].tolist() == trained


def _write_with_mask(path: Path, row: PackedRow, mask: list[int]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"input_ids": [row.input_ids], "loss_mask": [mask], "seq_start_id": [row.seq_start_id]}
    pq.write_table(pa.table(columns), path)


def _batch_of(container: Any, path: Path) -> dict[str, Any]:
    import copy

    changed = copy.deepcopy(container)
    changed.dataset.offline_packing_specs.packed_train_data_path = str(path)
    reader = built(changed)
    return reader.collate_fn([reader[0]])
