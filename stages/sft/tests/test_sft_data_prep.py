"""From conversations to packed rows with the mask of transformers' own chat template code."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve
from nemotron_shared.data.packed import labels_of, read_packed
from nemotron_shared.data.sources import Row
from nemotron_shared.data.tokenizer_folder import provide_tokenizer
from nemotron_shared.data.world import chats
from nemotron_shared.errors import UserError
from stages.sft.data_prep import Encoder, chat_template, first_question, split_sequences, write_split
from stages.sft.schema import SFTConfig, SFTData

CONFIG = Path(__file__).parent.parent / "config"


def settings(*overrides: str) -> SFTData:
    values = resolve(compose(CONFIG, "tiny", overrides).tree, lambda role, field: None)
    return SFTConfig.model_validate(values).data_prep


@pytest.fixture
def encoder(tmp_path: Path) -> Encoder:
    tokenizer = provide_tokenizer("tiny", tmp_path / "tokenizer")
    return Encoder(settings(), tokenizer, chat_template(settings(), tokenizer))


def test_ids_and_masks_are_those_of_transformers(encoder: Encoder) -> None:
    reference = AutoTokenizer.from_pretrained(encoder.tokenizer.path)
    for number, row in enumerate(chats(seed=5, count=200)):
        ids, mask = encoder.encode(Row(row, "world", number), row["messages"])
        expected = reference.apply_chat_template(row["messages"], return_dict=True, return_assistant_tokens_mask=True)
        assert ids == expected["input_ids"]
        assert mask == expected["assistant_masks"]
        assert 0 < sum(mask) < len(mask)


def test_packed_labels_are_the_assistants_tokens_and_their_end(encoder: Encoder, tmp_path: Path) -> None:
    rows = list(chats(seed=5, count=50))
    sequences = [encoder.encode(Row(row, "world", number), row["messages"]) for number, row in enumerate(rows)]
    stats = write_split(tmp_path / "train.parquet", sequences, settings())
    assert stats["conversations"] == 50
    assert stats["fill"] > 0.8
    labels = [label for row in read_packed(tmp_path / "train.parquet") for label in labels_of(row) if label != -100]
    trained = sorted(token for ids, mask in sequences for token, bit in zip(ids, mask, strict=True) if bit)
    assert sorted(int(label) for label in labels) == trained


def test_equal_questions_stay_on_one_side() -> None:
    row = [{"role": "system", "content": "s"}, {"role": "user", "content": "2+2?"}]
    assert first_question(row) == "2+2?"
    shares = settings("data_prep.split={train: 0.5, valid: 0.5, test: 0}")
    made = split_sequences([(f"question {n % 7}", ([n], [1])) for n in range(70)], shares)
    assert {number % 7 for (number,), _ in made["train"]}.isdisjoint({number % 7 for (number,), _ in made["valid"]})


@pytest.mark.parametrize(
    ("form", "row"),
    [
        ("messages", {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}),
        ("prompt_response", {"prompt": "2+2?", "response": "4"}),
        ("sharegpt", {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]}),
    ],
)
def test_three_forms_of_a_row_give_one_conversation(tmp_path: Path, form: str, row: dict) -> None:
    tokenizer = provide_tokenizer("tiny", tmp_path / "tokenizer")
    chosen = settings(f"data_prep.format={form}")
    messages = Encoder(chosen, tokenizer, chat_template(chosen, tokenizer)).messages_of(
        Row(json.loads(json.dumps(row)), "f", 1)
    )
    assert [(turn["role"], turn["content"]) for turn in messages] == [("user", "2+2?"), ("assistant", "4")]


def test_a_missing_template_file_is_named(tmp_path: Path) -> None:
    tokenizer = provide_tokenizer("tiny", tmp_path / "tokenizer")
    with pytest.raises(UserError, match=r"none\.jinja"):
        chat_template(settings("data_prep.chat_template=none.jinja"), tokenizer)
