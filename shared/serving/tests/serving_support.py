"""What the tests of the server share: a request as it is given, and a model that says what it is told to."""

import http.client
from typing import Any
from urllib.parse import urlsplit

import pytest

from nemotron_serving.model import Model

QUESTION = [{"role": "user", "content": "What is 3+4?"}]


def ask(url: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """A request as it is given, whatever it is."""
    place = urlsplit(url)
    assert place.hostname
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=300)
    given = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("GET" if body is None else "POST", path, body, given)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), content


def planned(model: Model, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    """The model says what it is told to."""
    ids = [*model.tokenizer(said, add_special_tokens=False).input_ids, model.tokenizer.eos_token_id]
    original = model.batch._tell

    def tell(answers: Any, logits: Any) -> list[int | None]:
        logits = logits.clone()
        for row, answer in zip(logits, answers, strict=True):
            row[ids[answer.made]] = 1e4
        return original(answers, logits)

    monkeypatch.setattr(model.batch, "_tell", tell)
