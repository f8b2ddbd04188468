"""What worker processes are given of an encoder: the loaded one when forked, its spec when started afresh."""

import pickle
from pathlib import Path

import pytest

from nemotron_data.encoders import EncoderSpec, WorkerEncoder, choose_encoder
from nemotron_data.tokenizers.folder import provide_tokenizer


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
