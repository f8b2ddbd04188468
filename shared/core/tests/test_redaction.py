"""What opens doors is taken out of texts, and what only looks like it stays."""

import pytest

from nemotron_shared import redaction
from nemotron_shared.redaction import keep_secret, redact, redact_values, with_references


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Bearer hf_abcdefghijkl", "Bearer ***"),
        ("s3://me:word@bucket/a.jsonl, http://u:p@proxy:80/", "s3://***@bucket/a.jsonl, http://***@proxy:80/"),
        ("see https://x.test/y?sig=1&k=2.", "see https://x.test/y?***."),
        ("engine.overrides.wandb.api_key=0123456789 a=1", "engine.overrides.wandb.api_key=*** a=1"),
        ('{"password": "swordfish", "n": 1}', '{"password": "***", "n": 1}'),
        ("login --token abcdefgh --n 3", "login --token *** --n 3"),
        ("authorization: Bearer abc.def", "authorization: Bearer ***"),
        ("nvapi-0123456789 ghp_0123456789abcdef", "*** ***"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "hf://org/name@main/a?b",
        "data_prep.tokenizer.model=./folder eos_token=<|im_end|> max_new_tokens=128000",
        "set HF_TOKEN to a token that may read it: token embeddings are tied",
        "dataset.pad_token=<|endoftext|>, password=null",
        "2,272 tokens/s at 12:30; someone@example.com",
    ],
)
def test_what_is_none_stays(text: str) -> None:
    assert redact(text) == text


def test_values_of_telling_variables_are_hidden_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "MY_DB_PASSWORD": "sword/fish", "WANDB_API_KEY": "0a1b2c3d4e", "SSH_KEY": "/root/.ssh/id", "SHORT_TOKEN": "a",
        "TOKENIZERS_PARALLELISM": "enabled",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    said = {"a": ["with sword/fish", ("sword%2Ffish", 3)], "0a1b2c3d4e": None, "b": "/root/.ssh/id a enabled"}
    assert redact_values(said) == {"a": ["with ***", ["***", 3]], "***": None, "b": "/root/.ssh/id a enabled"}


def test_what_a_config_reads_is_written_as_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_read_by_config", {})
    for name, value in {"TEAM": "canary-team", "DATA": "/data/sets", "COUNT": "1000000", "USER": "somebody"}.items():
        monkeypatch.setenv(name, value)
        keep_secret(name)
    assert redact("canary-team of somebody in /data/sets: 1000000") == "*** of somebody in /data/sets: 1000000"
    assert with_references({"entity": "canary-team"}) == {"entity": "${oc.env:TEAM}"}
