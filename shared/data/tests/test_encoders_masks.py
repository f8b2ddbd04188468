"""Names of control tokens in texts are text, whatever encodes them."""

import random
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE

from nemotron_data.chat.template import ChatTemplate
from nemotron_data.encoders import masks_from_spans, token_bytes
from nemotron_data.encoders.backends import Encoder, FastokensEncoder, GigatokenEncoder, ReferenceEncoder
from nemotron_data.encoders.masks import MARKUP, ControlTokens, encode_in_pieces, mask_by_offsets, pattern_of
from nemotron_data.tokenizers.folder import TokenizerFolder, provide_tokenizer
from nemotron_data.tokenizers.tiny import save_tokenizer

SPECIAL = ["<|im_start|>", "<|im_end|>", "<｜end▁of▁turn｜>"]
WORDS = ["hello", " ", " is", "é", "e\u0301", "日本", "😀", "🇩🇪", "👩‍👧", "\n", "  ", "\u2028", "12", "xxxx"]
WORDS += SPECIAL
# No token ends where the assistant's text does: spans start and end inside tokens and inside characters' bytes.
GLUED = """
{%- for message in messages %}
    {%- if message.role == 'assistant' %}{{ 'a ' }}{% generation %}{{ message.content }}{% endgeneration %}
    {%- else %}{{ 'u:' + message.content }}{% endif %}
{%- endfor %}"""
CHATML = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
    {%- else %}{{ message.content + '<|im_end|>' }}{% endif %}{{ '\\n' }}
{%- endfor %}"""


def save(tokenizer: Tokenizer, into: Path) -> TokenizerFolder:
    tokenizer.save(str(into / "tokenizer.json"))
    return TokenizerFolder(into)


def byte_level() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([" ".join(WORDS[:-3]), "a hello u:hello aé a😀 日本日本" * 3], trainer)
    return made


@pytest.fixture(scope="module", params=["tiny", "byte level"])
def folder(request, tmp_path_factory) -> TokenizerFolder:
    path = tmp_path_factory.mktemp("tokenizer")
    if request.param == "tiny":
        save_tokenizer(path)
        return TokenizerFolder(path)
    return save(byte_level(), path)


def mask_of_one(ids: np.ndarray, text: str, spans: list[tuple[int, int]], folder: TokenizerFolder) -> list[int] | None:
    """The mask of one text; None where it is not known."""
    mask, ok = masks_from_spans(ids, np.array([0, len(ids)]), [text], [spans], token_bytes(folder))
    return mask.tolist() if ok[0] else None


def conversation(seed: int) -> list[dict]:
    choose = random.Random(seed)
    turns = []
    for _ in range(choose.randrange(1, 4)):
        question = "".join(choose.choices(WORDS, k=choose.randrange(6)))
        answer = "".join(choose.choices(WORDS, k=choose.randrange(1, 7)))
        turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return turns


@pytest.mark.parametrize("source", [GLUED, CHATML], ids=["glued", "chatml"])
def test_masks_of_a_batch_are_those_of_transformers(folder, source):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=folder.tokenizer, chat_template=source)
    template = ChatTemplate(source)
    chats = [conversation(seed) for seed in range(300)]
    texts, spans = zip(*[template.render_with_spans(chat) for chat in chats], strict=True)
    ids, offsets = ReferenceEncoder(folder.tokenizer).encode(texts)
    mask, ok = masks_from_spans(ids, offsets, texts, spans, token_bytes(folder))
    assert ok.all() and mask.dtype == np.uint8 and 2000 < mask.sum() < len(ids)
    for k, chat in enumerate(chats):
        expected = theirs.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
        part = slice(offsets[k], offsets[k + 1])
        assert ids[part].tolist() == expected["input_ids"]
        assert mask[part].tolist() == expected["assistant_masks"]
        assert mask_of_one(ids[part], texts[k], spans[k], folder) == mask[part].tolist()


def test_the_slow_exact_way_gives_the_same_masks(folder):
    template = ChatTemplate(CHATML)
    for seed in range(150):
        text, spans = template.render_with_spans(conversation(seed))
        ids, expected = mask_by_offsets(folder.tokenizer, text, spans)
        assert mask_of_one(np.array(ids), text, spans, folder) == expected


def test_a_span_inside_a_token_marks_the_whole_token(folder):
    text = "x<|im_start|>yz"
    ids = np.array(folder.tokenizer.encode(text).ids)
    at = ids.tolist().index(folder.tokenizer.token_to_id("<|im_start|>"))
    mask = mask_of_one(ids, text, [(4, 6), (8, 9)], folder)
    assert mask is not None and np.flatnonzero(mask).tolist() == [at]


def test_lengths_that_do_not_add_up_spoil_only_their_own_text(folder):
    texts, spans = ["u a", "u 😀 ab", "u é"], [[(2, 3)], [(4, 6)], [(2, 3)]]
    ids, offsets = ReferenceEncoder(folder.tokenizer).encode(texts)
    right, ok = masks_from_spans(ids, offsets, texts, spans, token_bytes(folder))
    assert ok.tolist() == [True, True, True]
    texts[1] += "?"
    mask, ok = masks_from_spans(ids, offsets, texts, spans, token_bytes(folder))
    assert ok.tolist() == [True, False, True]
    for k in (0, 2):
        part = slice(offsets[k], offsets[k + 1])
        assert mask[part].tolist() == right[part].tolist() and mask[part].any()
    assert mask_of_one(ids[offsets[1] : offsets[2]], texts[1], spans[1], folder) is None


def test_a_mask_of_all_ones_is_not_given(folder):
    ids, offsets = ReferenceEncoder(folder.tokenizer).encode(["ab", "", "ab"])
    mask, ok = masks_from_spans(ids, offsets, ["ab", "", "ab"], [[(0, 2)], [], []], token_bytes(folder))
    assert ok.tolist() == [False, True, True]
    assert not mask[offsets[1] :].any()
    assert mask_of_one(ids[:0], "", [], folder) == []


def test_without_lengths_no_mask_is_known():
    mask, ok = masks_from_spans(np.array([1, 2]), np.array([0, 2]), ["ab"], [[(1, 2)]], None)
    assert mask.tolist() == [0, 0] and ok.tolist() == [False]


def test_tokens_are_as_long_as_what_they_stand_for(folder):
    lengths = token_bytes(folder)
    assert len(lengths) == folder.vocab_size and lengths.dtype == np.int32
    for number in range(len(lengths)):
        name = folder.tokenizer.id_to_token(number)
        is_added = number in folder.tokenizer.get_added_tokens_decoder()
        assert lengths[number] == (len(name.encode()) if is_added else len(name))
    assert lengths[folder.tokenizer.encode("日本 😀\u2028").ids].sum() == len("日本 😀\u2028".encode())


def spoilt(kind: str) -> Tokenizer:
    made = byte_level()
    if kind == "normalizer":
        made.normalizer = normalizers.NFC()
    elif kind == "prefix space":
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    elif kind == "eats spaces":
        made.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    elif kind == "drops spaces":
        cut = pre_tokenizers.Split(" ", "removed")
        made.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    elif kind == "no bytes":
        made.pre_tokenizer = pre_tokenizers.Whitespace()
    elif kind == "lacks a byte":
        made = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        made.pre_tokenizer = None
    return made


@pytest.mark.parametrize(
    "kind", ["normalizer", "prefix space", "eats spaces", "drops spaces", "no bytes", "lacks a byte", "nothing"]
)
def test_tokenizers_that_change_the_text_have_no_lengths(kind, tmp_path):
    assert token_bytes(save(spoilt(kind), tmp_path)) is None


TEXTS = [
    "What does <|im_end|>\n<|im_start|>system mean?",
    "plain ünicode",
    "</s></s><</s>é</s",
    "<|im_start<|im_end|>|>",
    "<think>why</think> not",
    "",
]


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> TokenizerFolder:
    made = provide_tokenizer("tiny", tmp_path_factory.mktemp("tokenizer"))
    made.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # which all libraries can read
    made.tokenizer.save(str(made.path / "tokenizer.json"))
    return made


def encoders(tiny_folder: TokenizerFolder) -> list[Encoder]:
    file = tiny_folder.path / "tokenizer.json"
    return [ReferenceEncoder(Tokenizer.from_file(str(file))), FastokensEncoder(file), GigatokenEncoder(file)]


def test_no_library_makes_a_control_token_of_a_name(tiny_folder: TokenizerFolder) -> None:
    control, tokenizer = ControlTokens.of(tiny_folder.tokenizer), tiny_folder.tokenizer
    cuts = [control.cuts(text) for text in TEXTS]
    assert [bool(places) for places in cuts] == [True, False, True, True, False, False]
    made = [encode_in_pieces(encoder.encode, TEXTS, cuts) for encoder in encoders(tiny_folder)]
    for ids, offsets in made:
        assert np.array_equal(ids, made[0][0]) and np.array_equal(offsets, made[0][1])
        texts = [tokenizer.decode(ids[a:b].tolist(), skip_special_tokens=False) for a, b in pairwise(offsets)]
        assert texts == TEXTS
        assert not {number for name, number in control.ids.items() if name not in MARKUP} & set(ids.tolist())


def test_documents_are_found_by_their_ids(tiny_folder: TokenizerFolder) -> None:
    control = ControlTokens.of(tiny_folder.tokenizer)
    assert control.documents_with(*ReferenceEncoder(tiny_folder.tokenizer).encode(TEXTS)) == [0, 2, 3]


def test_which_tokens_steer_a_conversation() -> None:
    tokenizer = Tokenizer(BPE({"a": 0}, []))
    tokenizer.add_special_tokens(["<s>", "EOS"])
    tokenizer.add_tokens(["<｜User｜>", "covid", "  ", "<think>"])
    assert set(ControlTokens.of(tokenizer).ids) == {"<s>", "EOS", "<｜User｜>", "<think>"}


def test_a_tokenizer_that_puts_spaces_before_pieces_is_noticed(tiny_folder: TokenizerFolder) -> None:
    assert ControlTokens.of(tiny_folder.tokenizer).spelled
    spaced = Tokenizer.from_file(str(tiny_folder.path / "tokenizer.json"))
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
