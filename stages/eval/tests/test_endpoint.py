"""The server over a model: its answers are the model's own, whoever else is asking, and it is gone afterwards."""

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from evaluator_support import tiny_model

from nemotron_shared.errors import UserError
from stages.eval import endpoint
from stages.eval.batching import ModelQueue
from stages.eval.endpoint import serve
from stages.eval.models import require_answers

KEY = "a-key-of-this-test"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def url(tiny: tuple[Any, Any]) -> Iterator[str]:
    with serve(*tiny, name="tiny", batch_size=8, key=KEY) as found:
        yield found


def ask(url: str, path: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
    body = None if request is None else json.dumps(request).encode()
    asked = urllib.request.Request(url + path, data=body, headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(asked, timeout=600) as answer:
        return json.loads(answer.read())


def refusal(url: str, path: str, request: dict[str, Any]) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(url, path, request)
    return caught.value.code, json.loads(caught.value.read())["error"]["message"]


def greedy(model: Any, ids: list[int], most: int) -> list[int]:
    """Token by token, without a cache: slow and beyond doubt."""
    ids = list(ids)
    for _ in range(most):
        with torch.inference_mode():
            ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids


def test_it_is_ready_and_names_its_model(url: str) -> None:
    assert ask(url, "/health") == {"status": "ok"}
    assert [model["id"] for model in ask(url, "/v1/models")["data"]] == ["tiny"]


def test_echo_gives_the_log_probability_of_every_token(url: str, tiny: tuple[Any, Any]) -> None:
    model, tokenizer = tiny
    ids = tokenizer("Mira lives in Oster.", add_special_tokens=False).input_ids
    request = {"prompt": [ids], "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    (choice,) = ask(url, "/v1/completions", request)["choices"]
    with torch.inference_mode():
        expected = torch.log_softmax(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float(), -1)
    logprobs = choice["logprobs"]
    assert logprobs["token_logprobs"][0] is None
    assert len(logprobs["tokens"]) == len(ids) + 1
    own = [expected[place, token].item() for place, token in enumerate(ids[1:])]
    assert logprobs["token_logprobs"][1:-1] == pytest.approx(own, abs=1e-5)
    best = [max(top.values()) for top in logprobs["top_logprobs"][1:]]
    assert best == pytest.approx(expected.max(-1).values.tolist(), abs=1e-5)
    assert logprobs["token_logprobs"][-1] == best[-1]


def test_text_and_ids_are_the_same_prompt(url: str, tiny: tuple[Any, Any]) -> None:
    ids = tiny[1]("Tova keeps a goat", add_special_tokens=False).input_ids
    rest = {"max_tokens": 6, "temperature": 0}
    by_text = ask(url, "/v1/completions", {"prompt": "Tova keeps a goat", **rest})["choices"][0]["text"]
    assert by_text == ask(url, "/v1/completions", {"prompt": ids, **rest})["choices"][0]["text"]
    assert by_text == tiny[1].decode(greedy(tiny[0], ids, 6)[len(ids) :], skip_special_tokens=True)


def test_a_stop_string_ends_the_answer_before_it(url: str) -> None:
    request = {"prompt": "What is 3+4?", "max_tokens": 12, "temperature": 0}
    whole = ask(url, "/v1/completions", request)["choices"][0]["text"]
    stop = whole[len(whole) // 2 :][:2]
    cut = ask(url, "/v1/completions", {**request, "stop": [stop, "never written"]})["choices"][0]["text"]
    assert cut == whole[: whole.index(stop)]
    assert len(cut) < len(whole)


def test_an_answer_that_was_cut_is_told_and_a_thought_that_the_prompt_opened_is_part_of_it(tiny) -> None:
    model, tokenizer = tiny
    cut: dict[str, bool] = {}
    opened, tokenizer.chat_template = tokenizer.chat_template, "{{ messages[-1].content }}<think>\n"
    try:
        with serve(model, tokenizer, name="tiny", batch_size=8, key=KEY, cut=cut) as url:
            messages = [{"role": "user", "content": "What is 3+4?"}]
            request = {"messages": messages, "max_tokens": 3, "temperature": 0}
            (choice,) = ask(url, "/v1/chat/completions", request)["choices"]
    finally:
        tokenizer.chat_template = opened
    assert choice["message"]["content"].startswith("<think>")
    assert (choice["finish_reason"], cut) == ("length", {"What is 3+4?": True})


def test_requests_that_wait_together_get_the_answers_of_requests_alone(url: str, tiny: tuple[Any, Any]) -> None:
    model, tokenizer = tiny
    questions = [f"What is {number}+{number * 7}?" for number in range(12)]

    def chat(question: str) -> str:
        messages = [{"role": "user", "content": question}]
        request = {"messages": messages, "max_tokens": 6, "temperature": 0}
        return ask(url, "/v1/chat/completions", request)["choices"][0]["message"]["content"]

    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(chat, questions))
    for question, answer in zip(questions, together, strict=True):
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer(prompt, add_special_tokens=False).input_ids
        made = greedy(model, ids, 6)[len(ids) :]
        made = made[: made.index(tokenizer.eos_token_id)] if tokenizer.eos_token_id in made else made
        assert answer == tokenizer.decode(made, skip_special_tokens=True)
    assert len(set(together)) > 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"temperature": 0.7}, "temperature must be 0, not 0.7"),
        ({"temperature": None}, "temperature must be 0, not None"),
        ({"stream": True}, "stream must be false"),
        ({"n": 2}, "n must be 1"),
        ({"prompt": ""}, "empty"),
        ({"prompt": [10**9]}, "outside the vocabulary"),
        ({"logprobs": 5}, "together with 'echo' only"),
        ({"echo": True, "logprobs": 1, "max_tokens": 9}, "max_tokens must be 0 or 1, not 9"),
    ],
)
def test_what_cannot_be_answered_as_asked_is_refused(url: str, change: dict[str, Any], reason: str) -> None:
    request = {"prompt": "Mira", "max_tokens": 2, "temperature": 0} | change
    code, message = refusal(url, "/v1/completions", request)
    assert code == 400
    assert reason in message


@pytest.mark.parametrize("key", [None, "Bearer wrong", f"Basic {KEY}", "Bearer \u00e9"])
def test_who_does_not_know_the_key_is_told_nothing(url: str, key: str | None) -> None:
    for path, body in (("/v1/models", None), ("/v1/completions", b"{}"), ("/elsewhere", None)):
        asked = urllib.request.Request(url + path, data=body, headers={"Authorization": key} if key else {})
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(asked, timeout=600)
    assert json.loads(urllib.request.urlopen(f"{url}/health", timeout=600).read()) == {"status": "ok"}


@pytest.mark.parametrize("length", ["-1", "8388609", "9" * 5000, "many", ""])
def test_a_body_of_no_or_too_great_length_is_refused_unread(url: str, length: str) -> None:
    with socket.create_connection((url.split("/")[2].split(":")[0], int(url.rpartition(":")[2])), timeout=600) as line:
        head = f"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {length}\r\n\r\n"
        line.sendall(head.encode())
        assert b" 400 " in line.makefile("rb").readline()


def test_an_endless_question_is_refused(url: str) -> None:
    deep = {"prompt": "a", "temperature": 0, "max_tokens": 1}
    for change in ({"max_tokens": 10**9}, {"max_tokens": "9"}, {"max_tokens": True}, {"prompt": ["a"] * 2000}):
        assert refusal(url, "/v1/completions", deep | change)[0] == 400
    asked = urllib.request.Request(f"{url}/v1/completions", b"[" * 100_000, {"Authorization": f"Bearer {KEY}"})
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(asked, timeout=600)


def test_another_path_is_not_found(url: str) -> None:
    code, message = refusal(url, "/v1/embeddings", {"input": "Mira"})
    assert code == 404
    assert "/v1/completions" in message


def test_the_server_is_gone_after_its_block(tiny: tuple[Any, Any], tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="on purpose"), serve(*tiny, name="tiny", batch_size=2, key=KEY) as url:
        ask(url, "/health")
        raise KeyError("on purpose")
    with pytest.raises(OSError, match="refused"):
        ask(url, "/health")


def test_a_closed_queue_leaves_a_generation_in_the_middle(tiny: tuple[Any, Any]) -> None:
    model, tokenizer = tiny
    passes = 0

    def count(module: Any, inputs: Any) -> None:
        nonlocal passes
        passes += 1
        if passes == 2:
            queue._closed = True  # as `__exit__` does, in its own thread

    listening = model.register_forward_pre_hook(count)
    try:
        with ModelQueue(model, tokenizer, batch_size=1) as queue:
            queue.generate(tokenizer("Mira").input_ids, max_tokens=40, stop=[])
    finally:
        listening.remove()
    assert passes == 2


@pytest.mark.parametrize("whole", [b"", b"GET /health HTTP/1.1\r\n\r\n"])
def test_half_requests_without_a_key_hold_no_connection(
    url: str, monkeypatch: pytest.MonkeyPatch, whole: bytes
) -> None:
    monkeypatch.setattr(endpoint, "REQUEST_SECONDS", 0.3)
    with socket.create_connection((endpoint.LOOPBACK, int(url.rpartition(":")[2])), timeout=600) as line:
        line.sendall(whole + b"GET /health HTTP/1.1\r\nX-A: ")
        with pytest.raises(OSError, match=r"."):  # a byte now and then changes nothing
            for _ in range(3000):
                time.sleep(0.1)
                line.sendall(b"a")


def test_a_model_that_computes_no_numbers_is_not_asked(tiny: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = tiny
    require_answers(model, "whole:v1")
    for forward, said in ((lambda states: states * float("nan"), "not finite"), (lambda states: 1 / 0, "ZeroDivision")):
        monkeypatch.setattr(model.lm_head, "forward", forward)
        with pytest.raises(UserError, match=f"damaged:v1: cannot answer: .*{said}"):
            require_answers(model, "damaged:v1")


def test_an_answer_ends_at_every_token_that_the_model_names(
    tiny: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = tiny
    ids = tokenizer("Mira lives in").input_ids
    written = greedy(model, ids, 6)[len(ids) :]
    end = next(token for token in written if token not in written[:2] and token not in tokenizer.all_special_ids)
    place = written.index(end)
    monkeypatch.setattr(model.generation_config, "eos_token_id", [tokenizer.eos_token_id, end])
    with ModelQueue(model, tokenizer, batch_size=2) as queue:
        assert queue.generate(ids, max_tokens=40, stop=[]) == tokenizer.decode(written[:place])
