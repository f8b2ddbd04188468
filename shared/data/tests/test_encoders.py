"""What worker processes are given of an encoder: the loaded one when forked, its spec when started afresh."""

import multiprocessing
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from nemotron_data.encoders import Encoder, EncoderSpec, WorkerEncoder, backends, choose_encoder
from nemotron_data.encoders.backends import LONG_TEXT, GigatokenEncoder, find_joiner
from nemotron_data.encoders.choice import hard_cases
from nemotron_data.tokenizers.folder import TokenizerFolder, provide_tokenizer
from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_shared.system.errors import UserError

SPECIAL = ["<unk>", "<s>", "</s>", "<|im_end|>"]
NEMOTRON = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXTS = ["Hello world, it's 12:30!", "", "def f(x):\n\treturn x  # é 日本 😀\r\n\r\n", "a </s> b</s>", "    x" * 40]


def byte_level(split: str | None = None, special: list[str] = SPECIAL) -> Tokenizer:
    """A small tokenizer with the regex of GPT-2, or another one."""
    made = Tokenizer(models.BPE(ignore_merges=split is not None))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split is not None:
        cut = pre_tokenizers.Split(Regex(split), "isolated")
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([Path(__file__).read_text(encoding="utf-8"), *TEXTS], trainer)
    return made


def save(tokenizer: Tokenizer, into: Path) -> TokenizerFolder:
    tokenizer.save(str(into / "tokenizer.json"))
    return TokenizerFolder(into)


def reference(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def lists(encoded: tuple[np.ndarray, np.ndarray]) -> list[list[int]]:
    ids, offsets = encoded
    assert (ids.dtype, offsets.dtype) == (np.uint32, np.int64)
    assert offsets[0] == 0 and offsets[-1] == len(ids)
    return [part.tolist() for part in np.split(ids, offsets[1:-1])] if len(offsets) > 1 else []


@pytest.fixture(scope="module", params=["gpt2", "nemotron", "tiny"])
def folder(request, tmp_path_factory) -> TokenizerFolder:
    path = tmp_path_factory.mktemp(request.param)
    if request.param == "tiny":
        save_tokenizer(path)
        return TokenizerFolder(path)
    return save(byte_level(NEMOTRON if request.param == "nemotron" else None), path)


@pytest.fixture(scope="module")
def chosen(folder) -> Encoder:
    return choose_encoder(folder, TEXTS).encoder


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory) -> TokenizerFolder:
    return save(byte_level(), tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module", params=["gigatoken", "fastokens", "tokenizers"])
def encoder(request, gpt2) -> Encoder:
    chosen = choose_encoder(gpt2, TEXTS, request.param)
    assert (chosen.backend, chosen.encoder.name, chosen.skipped) == (request.param, request.param, {})
    assert chosen.version[0].isdigit()
    return chosen.encoder


def test_auto_takes_the_first_library_that_can(folder):
    chosen = choose_encoder(folder, TEXTS)
    is_tiny = folder.path.name.startswith("tiny")
    assert chosen.backend == ("fastokens" if is_tiny else "gigatoken")
    assert list(chosen.skipped) == (["gigatoken"] if is_tiny else [])
    assert chosen.probed == len(hard_cases(folder.tokenizer)) + len(TEXTS)
    assert chosen.announcement() is None
    assert lists(chosen.encoder.encode(TEXTS)) == reference(folder.tokenizer, TEXTS)


@pytest.mark.parametrize("texts", [[], [""], ["", ""], ["</s>"], ["</s>", "</s>"], ["", "a", ""], ["<", "/s>"], TEXTS])
def test_ids_are_those_of_tokenizers(encoder, gpt2, texts):
    for way in [encoder.encode, *encoder.ways()]:
        assert lists(way(texts)) == reference(gpt2.tokenizer, texts)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_ids_of_any_text_are_those_of_tokenizers(folder, chosen, data):
    anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
    awkward = st.sampled_from(
        [*SPECIAL, "</", "s>", " ", "  ", "\n", "é", "e\u0301", "字", "🇩🇪", "\x00", "it's", "123"]
    )
    texts = data.draw(st.lists(st.one_of(anything, st.lists(awkward, max_size=8).map("".join)), max_size=6))
    expected = reference(folder.tokenizer, texts)
    for way in [chosen.encode, *chosen.ways()]:
        assert lists(way(texts)) == expected


def test_long_texts_and_short_ones_take_different_ways(gpt2, monkeypatch):
    encoder = choose_encoder(gpt2, []).encoder
    taken = []
    for name in ("_one_by_one", "_all_in_one"):
        way = getattr(GigatokenEncoder, name)
        monkeypatch.setattr(GigatokenEncoder, name, lambda *args, n=name, w=way: taken.append(n) or w(*args))
    long = ["long " * LONG_TEXT] * 3
    assert lists(encoder.encode(long)) == reference(gpt2.tokenizer, long)
    assert lists(encoder.encode(TEXTS)) == reference(gpt2.tokenizer, TEXTS)
    assert taken == ["_one_by_one", "_all_in_one"]


def test_a_lone_surrogate_is_an_error_that_names_the_text(encoder):
    with pytest.raises(ValueError, match="text 1 is not Unicode: character 2"):
        encoder.encode(["fine", "no\ud800"])


def test_what_is_no_text_is_an_error(encoder):
    with pytest.raises((TypeError, AttributeError)):
        encoder.encode(["fine", None])


# --- tokenizers with something special about them


def refuses_gigatoken(made: Tokenizer) -> None:
    cut = pre_tokenizers.Split(Regex(r"\p{L}{1,3}|\s|[^\s\p{L}]"), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def truncates(made: Tokenizer) -> None:
    made.enable_truncation(5)
    made.enable_padding(length=9)


def adds_bos(made: Tokenizer) -> None:
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])


def normalizes(made: Tokenizer) -> None:
    made.normalizer = normalizers.NFC()


def puts_a_space_first(made: Tokenizer) -> None:
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)


def eats_spaces(made: Tokenizer) -> None:
    made.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True), AddedToken("word", single_word=True)])


@pytest.mark.parametrize(
    "change", [refuses_gigatoken, truncates, adds_bos, normalizes, puts_a_space_first, eats_spaces]
)
def test_whatever_the_tokenizer_the_ids_are_right(change, tmp_path):
    made = byte_level()
    change(made)
    chosen = choose_encoder(save(made, tmp_path), TEXTS)
    made.no_truncation()
    made.no_padding()
    texts = [*TEXTS, "word<mask>  word", " <mask> ", "e\u0301", "x" * 100]
    assert lists(chosen.encoder.encode(texts)) == reference(made, texts)
    assert chosen.backend != "gigatoken" or change is not refuses_gigatoken


def test_a_library_that_refuses_the_tokenizer_is_an_error_only_by_name(tmp_path):
    made = byte_level()
    refuses_gigatoken(made)
    folder = save(made, tmp_path)
    chosen = choose_encoder(folder, TEXTS)
    assert chosen.backend == "fastokens" and "cannot load it" in chosen.skipped["gigatoken"]
    with pytest.raises(UserError, match="tokenizer backend gigatoken: cannot load it"):
        choose_encoder(folder, TEXTS, "gigatoken")


# --- libraries that are wrong or absent


def test_a_library_with_other_ids_is_not_used(gpt2, monkeypatch):
    def wrong(self, texts):
        ids, offsets = right(self, texts)
        return np.where(ids == number, number + 1, ids).astype(np.uint32), offsets

    right = GigatokenEncoder._one_by_one
    monkeypatch.setattr(GigatokenEncoder, "_one_by_one", wrong)
    text = "Q"
    number = gpt2.tokenizer.token_to_id(text)
    differing = sum(number in ids for ids in reference(gpt2.tokenizer, [*hard_cases(gpt2.tokenizer), text, text]))
    chosen = choose_encoder(gpt2, [text, text])
    assert chosen.backend == "fastokens" and differing >= 2
    assert chosen.skipped["gigatoken"].startswith(f"{differing} of {chosen.probed} documents get other ids")
    with pytest.raises(UserError, match=f"{differing} of {chosen.probed} documents"):
        choose_encoder(gpt2, [text, text], "gigatoken")


def test_without_a_fast_library_the_slow_one_is_announced(gpt2, monkeypatch):
    for name in ("gigatoken", "fastokens"):
        monkeypatch.setitem(sys.modules, name, None)
    chosen = choose_encoder(gpt2, TEXTS)
    assert chosen.backend == "tokenizers" and list(chosen.skipped) == ["gigatoken", "fastokens"]
    line = chosen.announcement()
    assert line is not None and "\n" not in line and "tokenizers (gigatoken: cannot load it" in line
    assert lists(chosen.encoder.encode(TEXTS)) == reference(gpt2.tokenizer, TEXTS)
    assert choose_encoder(gpt2, TEXTS, "tokenizers").announcement() is None


class PanicException(BaseException):
    """Named as what Rust code raises when it panics."""


@pytest.mark.parametrize("error", [RuntimeError("boom\nat line 3"), PanicException("boom")])
def test_a_library_that_breaks_on_a_text_is_not_used(gpt2, monkeypatch, error):
    def breaks(self, texts):
        raise error

    monkeypatch.setattr(backends.GigatokenEncoder, "_one_by_one", breaks)
    assert choose_encoder(gpt2, TEXTS).skipped == {"gigatoken": "fails on a text: boom"}


def test_ctrl_c_is_not_taken_for_a_broken_library(gpt2, monkeypatch):
    def interrupted(self, texts):
        raise KeyboardInterrupt

    monkeypatch.setattr(backends.GigatokenEncoder, "_one_by_one", interrupted)
    with pytest.raises(KeyboardInterrupt):
        choose_encoder(gpt2, TEXTS)


# --- the token between texts


def test_the_joiner_is_a_name_that_nothing_can_overlap(gpt2):
    joiner = find_joiner(gpt2.tokenizer)
    assert joiner is not None and (joiner.text, joiner.id) == ("<|im_end|>", 3)


@pytest.mark.parametrize(
    "special",
    [["</s>", "x<"], ["</s>", "a</s>b"], ["</s>", "</s></s>"], ["aba", "ab"], ["</s>", "</s>>"]],
    ids=["starts before", "around", "longer", "itself", "same start"],
)
def test_a_name_that_another_can_overlap_is_no_joiner(special, tmp_path):
    folder = save(byte_level(special=special), tmp_path)
    joiner = find_joiner(folder.tokenizer)
    assert joiner is None or joiner.text != special[0]
    texts = [piece * 2 for name in special for piece in (name, name[:1], name[:-1], name[1:])] * 2
    assert lists(choose_encoder(folder, texts).encoder.encode(texts)) == reference(folder.tokenizer, texts)


@pytest.mark.parametrize("change", [normalizes, puts_a_space_first, eats_spaces])
def test_tokenizers_that_look_beyond_a_token_have_no_joiner(change):
    made = byte_level()
    assert find_joiner(made) is not None
    change(made)
    assert find_joiner(made) is None


def test_texts_that_hold_the_joiner_keep_it(gpt2):
    encoder = choose_encoder(gpt2, []).encoder
    name = "<|im_end|>"
    texts = [name, "", f"a{name}{name}b", f"{name} ", "<|im_", "end|>", f" {name}"]
    assert lists(encoder.encode(texts)) == reference(gpt2.tokenizer, texts)


def encode_elsewhere(spec: EncoderSpec, texts: list[str]) -> list[list[int]]:
    return lists(spec.load().encode(texts))


@pytest.mark.parametrize("backend", ["gigatoken", "fastokens", "tokenizers"])
def test_an_encoder_works_after_a_fork_and_by_its_spec(gpt2, backend):
    chosen = choose_encoder(gpt2, TEXTS, backend)
    texts = TEXTS * 300
    expected = lists(chosen.encoder.encode(texts))
    # daemon: a child that hangs on its parent's threads must not outlive the test
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(encode_elsewhere, (chosen.spec, texts)).get(timeout=600) == expected
    assert encode_elsewhere(pickle.loads(pickle.dumps(chosen.spec)), texts) == expected


def test_an_encoder_itself_survives_a_fork(encoder):
    texts = TEXTS * 300
    expected = lists(encoder.encode(texts))
    with multiprocessing.get_context("fork").Pool(1, _keep, (encoder,)) as pool:
        assert pool.apply_async(_encode_kept, (texts,)).get(timeout=600) == expected


def _keep(encoder: Encoder) -> None:
    KEPT.append(encoder)


def _encode_kept(texts: list[str]) -> list[list[int]]:
    return lists(KEPT[-1].encode(texts))


KEPT: list[Encoder] = []


def test_starting_up_imports_nothing_heavy(gpt2):
    program = f"""
import sys
from itertools import pairwise
from pathlib import Path
from nemotron_data.encoders import choose_encoder
from nemotron_data.tokenizers.folder import TokenizerFolder
chosen = choose_encoder(TokenizerFolder(Path({str(gpt2.path)!r})), ["a b", "c"])
chosen.encoder.encode(["x"] * 10)
print(chosen.backend, [name for name in ("awkward", "torch", "transformers", "datasets") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "gigatoken []"


def test_an_encoder_travels_as_its_spec_and_loads_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = choose_encoder(provide_tokenizer("tiny", tmp_path), [], "tokenizers")
    here = choice.for_workers()
    wanted = here.encode(["2+2?"])[0].tolist()
    loads = []
    load = EncoderSpec.load
    monkeypatch.setattr(EncoderSpec, "load", lambda self: loads.append(self) or load(self))
    sent = pickle.dumps(here)
    there = pickle.loads(sent)
    assert len(sent) < 1000, "the loaded tokenizer was sent along"
    assert isinstance(there, WorkerEncoder) and there.encode(["2+2?"])[0].tolist() == wanted
    assert there.encode(["2+2?"])[0].tolist() == wanted
    assert loads == [choice.spec], "once in the other process, never here"
