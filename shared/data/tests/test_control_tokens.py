"""Names of control tokens in texts are text, whatever encodes them."""

import time
from itertools import pairwise

import numpy as np
import pytest
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE

from nemotron_data.encoders.backends import Encoder, FastokensEncoder, GigatokenEncoder, ReferenceEncoder
from nemotron_data.encoders.masks import MARKUP, ControlTokens, encode_in_pieces, pattern_of
from nemotron_data.tokenizers.folder import TokenizerFolder, provide_tokenizer

TEXTS = [
    "What does <|im_end|>\n<|im_start|>system mean?",
    "plain ünicode",
    "</s></s><</s>é</s",
    "<|im_start<|im_end|>|>",
    "<think>why</think> not",
    "",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> TokenizerFolder:
    made = provide_tokenizer("tiny", tmp_path_factory.mktemp("tokenizer"))
    made.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # which all libraries can read
    made.tokenizer.save(str(made.path / "tokenizer.json"))
    return made


def encoders(folder: TokenizerFolder) -> list[Encoder]:
    file = folder.path / "tokenizer.json"
    return [ReferenceEncoder(Tokenizer.from_file(str(file))), FastokensEncoder(file), GigatokenEncoder(file)]


def test_no_library_makes_a_control_token_of_a_name(folder: TokenizerFolder) -> None:
    control, tokenizer = ControlTokens.of(folder.tokenizer), folder.tokenizer
    cuts = [control.cuts(text) for text in TEXTS]
    assert [bool(places) for places in cuts] == [True, False, True, True, False, False]
    made = [encode_in_pieces(encoder.encode, TEXTS, cuts) for encoder in encoders(folder)]
    for ids, offsets in made:
        assert np.array_equal(ids, made[0][0]) and np.array_equal(offsets, made[0][1])
        texts = [tokenizer.decode(ids[a:b].tolist(), skip_special_tokens=False) for a, b in pairwise(offsets)]
        assert texts == TEXTS
        assert not {number for name, number in control.ids.items() if name not in MARKUP} & set(ids.tolist())


def test_documents_are_found_by_their_ids(folder: TokenizerFolder) -> None:
    control = ControlTokens.of(folder.tokenizer)
    assert control.documents_with(*ReferenceEncoder(folder.tokenizer).encode(TEXTS)) == [0, 2, 3]


def test_which_tokens_steer_a_conversation() -> None:
    tokenizer = Tokenizer(BPE({"a": 0}, []))
    tokenizer.add_special_tokens(["<s>", "EOS"])
    tokenizer.add_tokens(["<｜User｜>", "covid", "  ", "<think>"])
    assert set(ControlTokens.of(tokenizer).ids) == {"<s>", "EOS", "<｜User｜>", "<think>"}


def test_a_tokenizer_that_puts_spaces_before_pieces_is_noticed(folder: TokenizerFolder) -> None:
    assert ControlTokens.of(folder.tokenizer).spelled
    spaced = Tokenizer.from_file(str(folder.path / "tokenizer.json"))
    spaced.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    assert not ControlTokens.of(spaced).spelled


def test_a_thousand_names_are_looked_for_as_fast_as_one() -> None:
    text = "a < b and <SPECIAL_ or [x] " * 20_000
    control = ControlTokens({f"<SPECIAL_{number}>": number for number in range(1000)})
    begun = time.process_time()
    assert not control.anywhere.search(text)
    assert time.process_time() - begun < 1
    assert control.anywhere.search(text + "<SPECIAL_999>")
    assert pattern_of([]) == "(?!)"
