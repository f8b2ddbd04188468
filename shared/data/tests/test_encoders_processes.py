import multiprocessing
import pickle
import subprocess
import sys
from itertools import pairwise

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from nemotron_data.encoders import Encoder, EncoderSpec, choose_encoder
from nemotron_data.tokenizers.folder import TokenizerFolder

TEXTS = ["Hello world, it's 12:30!", "", "def f(x):\n\treturn x  # é 日本 😀\r\n\r\n", "a </s> b</s>"]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory) -> TokenizerFolder:
    """Bytes, no merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({byte: number for number, byte in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens(["<unk>", "</s>"])
    path = tmp_path_factory.mktemp("plain")
    made.save(str(path / "tokenizer.json"))
    return TokenizerFolder(path)


@pytest.fixture(params=["gigatoken", "fastokens", "tokenizers"])
def encoder(request, gpt2) -> Encoder:
    return choose_encoder(gpt2, TEXTS, request.param).encoder


def lists(encoded) -> list[list[int]]:
    ids, offsets = (array.tolist() for array in encoded)
    return [ids[start:end] for start, end in pairwise(offsets)]


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
