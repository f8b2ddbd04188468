"""The server that NeMo Evaluator asks: whole answers, whether each was cut, and models that cannot answer."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from evaluator_support import tiny_model

from nemotron_shared.system.errors import UserError
from stages.eval.engines.nemo_evaluator.ask import served
from stages.eval.models import require_answers

KEY = "a-key-of-this-test"
QUESTION = "What is 3+4?"
ASKED = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 6, "temperature": 0, "stop": ["<|im_end|>"]}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def url(tiny: tuple[Any, Any]) -> Iterator[str]:
    with served(*tiny, name="tiny", batch_size=8, key=KEY) as found:
        yield found


def ask(url: str, path: str, request: dict[str, Any] | None = None, key: str = KEY) -> dict[str, Any]:
    body = None if request is None else json.dumps(request).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url + path, data=body, headers=headers), timeout=600) as answer:
        return json.loads(answer.read())


def greedy(model: Any, ids: list[int], most: int) -> list[int]:
    """Token by token, without a cache: slow and beyond doubt."""
    ids = list(ids)
    for _ in range(most):
        with torch.inference_mode():
            ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids


def test_it_answers_health_and_needs_the_key(url: str) -> None:
    assert ask(url, "/health", key="wrong") == {"status": "ok"}
    assert [model["id"] for model in ask(url, "/v1/models")["data"]] == ["tiny"]
    with pytest.raises(urllib.error.HTTPError, match="401"):
        ask(url, "/v1/chat/completions", ASKED, key="wrong")


def test_chats_are_answered_greedily_at_temperatures_that_mean_zero(url: str, tiny: tuple[Any, Any]) -> None:
    model, tokenizer = tiny
    prompt = tokenizer.apply_chat_template(ASKED["messages"], tokenize=False, add_generation_prompt=True)
    ids = tokenizer(prompt, add_special_tokens=False).input_ids
    made = greedy(model, ids, 6)[len(ids) :]
    made = made[: made.index(tokenizer.eos_token_id)] if tokenizer.eos_token_id in made else made
    for temperature in (0, 1e-7):
        (choice,) = ask(url, "/v1/chat/completions", ASKED | {"temperature": temperature})["choices"]
        assert choice["message"]["content"] == tokenizer.decode(made, skip_special_tokens=True)


def test_likelihoods_of_a_prompt_as_long_as_the_context_are_told(url: str, tiny: tuple[Any, Any]) -> None:
    model, tokenizer = tiny
    ids = (tokenizer("Mira lives in Oster.", add_special_tokens=False).input_ids * 600)[
        : model.config.max_position_embeddings
    ]
    request = {"prompt": [ids], "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0, "seed": 1234}
    (choice,) = ask(url, "/v1/completions", request)["choices"]
    assert len(choice["logprobs"]["token_logprobs"]) == len(ids) + 1


def test_an_answer_keeps_the_thought_that_its_prompt_opened_and_is_noted_where_it_was_cut(tiny: Any) -> None:
    model, tokenizer = tiny
    cut: dict[str, bool] = {}
    template, tokenizer.chat_template = tokenizer.chat_template, "{{ messages[-1].content }}<think>\n"
    try:
        with served(model, tokenizer, name="tiny", batch_size=8, key=KEY, cut=cut) as url:
            (choice,) = ask(url, "/v1/chat/completions", ASKED | {"max_tokens": 3})["choices"]
    finally:
        tokenizer.chat_template = template
    assert choice["message"]["content"].startswith("<think>") and "reasoning_content" not in choice["message"]
    assert (choice["finish_reason"], cut) == ("length", {QUESTION: True})


def test_an_answer_ends_at_every_token_that_the_model_names(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny
    ids = tokenizer("Mira lives in").input_ids
    written = greedy(model, ids, 6)[len(ids) :]
    end = next(token for token in written if token not in written[:2] and token not in tokenizer.all_special_ids)
    monkeypatch.setattr(model.generation_config, "eos_token_id", [tokenizer.eos_token_id, end])
    with served(model, tokenizer, name="tiny", batch_size=2, key=KEY) as url:
        (choice,) = ask(url, "/v1/completions", {"prompt": ids, "max_tokens": 40, "temperature": 0})["choices"]
    assert (choice["text"], choice["finish_reason"]) == (tokenizer.decode(written[: written.index(end)]), "stop")


def test_the_server_is_gone_after_its_block(tiny: tuple[Any, Any], tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="on purpose"), served(*tiny, name="tiny", batch_size=2, key=KEY) as url:
        ask(url, "/health")
        raise KeyError("on purpose")
    with pytest.raises(OSError, match="refused"):
        ask(url, "/health")


def test_a_model_that_computes_no_numbers_is_not_asked(tiny: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = tiny
    require_answers(model, "whole:v1")
    for forward, said in ((lambda states: states * float("nan"), "not finite"), (lambda states: 1 / 0, "ZeroDivision")):
        monkeypatch.setattr(model.lm_head, "forward", forward)
        with pytest.raises(UserError, match=f"damaged:v1: cannot answer: .*{said}"):
            require_answers(model, "damaged:v1")
