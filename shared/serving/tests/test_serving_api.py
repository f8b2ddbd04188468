"""The server as its clients see it, well-meaning ones and others."""

import gc
import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from importlib.resources import files
from inspect import signature
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from serving_support import QUESTION, ask, planned
from transformers import PreTrainedTokenizerBase

from nemotron_data.chat.shown import Hidden
from nemotron_data.chat.template import ChatTemplate
from nemotron_serving import server
from nemotron_serving.api import Api
from nemotron_serving.asked import NOT_FOR_TEMPLATES, SET_BY_SERVER
from nemotron_serving.model import Model
from nemotron_serving.server import serving

KEY = "0123456789abcdef"


@pytest.fixture(scope="module")
def url(model: Model) -> Iterator[str]:
    with serving(Api(model, ("small",), 12).app(None)) as found:
        yield found


@pytest.fixture
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600)


def test_models_and_health(client: openai.OpenAI, url: str, model: Model) -> None:
    assert [one.id for one in client.models.list()] == ["small"]
    assert client.models.retrieve("small").id == "small"
    assert ask(url, "/health")[2] == b'{"status":"ok"}'
    assert b"nemotron_requests_waiting 0" in ask(url, "/metrics")[2]
    with pytest.raises(openai.NotFoundError, match="there is: small"):
        client.models.retrieve("../../etc/passwd")


def test_an_answer_streamed_is_the_answer_whole(client: openai.OpenAI, never_ends: Model) -> None:
    asked: Any = {"model": "small", "messages": QUESTION, "temperature": 0, "max_tokens": 9}
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage and whole.usage.completion_tokens == 9
    chunks = [*client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})]
    assert chunks[-1].usage == whole.usage
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert thought == (getattr(whole.choices[0].message, "reasoning_content", None) or "")
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"


def test_several_answers_a_seed_and_log_probabilities(client: openai.OpenAI, never_ends: Model) -> None:
    asked: Any = {"model": "small", "messages": QUESTION, "temperature": 1, "max_tokens": 5, "n": 3, "seed": 4}
    asked |= {"logprobs": True, "top_logprobs": 2}
    first, again = (client.chat.completions.create(**asked) for _ in range(2))
    said = [choice.message.content for choice in first.choices]
    assert said == [choice.message.content for choice in again.choices]
    assert len({*said}) > 1
    entries = first.choices[0].logprobs.content
    assert len(entries) == 5
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 2 for entry in entries)
    streamed = {0: 0, 1: 0, 2: 0}
    for chunk in client.chat.completions.create(**asked, stream=True):
        logprobs = chunk.choices[0].logprobs
        streamed[chunk.choices[0].index] += len(logprobs.content) if logprobs else 0
    assert streamed == {0: 5, 1: 5, 2: 5}


def test_the_smallest_temperature_draws_the_likeliest(client: openai.OpenAI) -> None:
    asked: Any = {"model": "small", "messages": QUESTION, "max_tokens": 4}
    coldest, greedy = (
        client.chat.completions.create(**asked, temperature=temperature).choices[0] for temperature in (1e-320, 0)
    )
    assert coldest.message.content == greedy.message.content


def test_completions_echo_and_stop(client: openai.OpenAI, never_ends: Model) -> None:
    asked: Any = {"model": "small", "temperature": 0, "max_tokens": 6, "logprobs": 1}
    several = client.completions.create(prompt=["Mira", "Tova keeps a goat"], echo=True, **asked)
    alone = client.completions.create(prompt="Mira", **asked).choices[0]
    first = several.choices[0]
    assert first.text == "Mira" + alone.text
    assert first.logprobs.tokens[-6:] == alone.logprobs.tokens
    assert first.logprobs.token_logprobs[0] is None
    assert len(first.logprobs.tokens) == len(first.logprobs.top_logprobs) == len(first.logprobs.text_offset)
    ids = never_ends.prompter.text("Mira").ids
    one = client.completions.create(prompt=[ids], echo=True, **asked | {"max_tokens": 1}).choices[0]
    assert one.logprobs.tokens == first.logprobs.tokens[: len(ids) + 1]
    assert one.logprobs.token_logprobs[1:] == pytest.approx(first.logprobs.token_logprobs[1 : len(ids) + 1], abs=1e-4)
    none = client.completions.create(prompt="Mira", echo=True, **asked | {"max_tokens": 0}).choices[0]
    assert none.text == "Mira"
    stop = alone.text[2:4]
    cut = client.completions.create(prompt="Mira", stop=[stop], **asked).choices[0]
    assert (cut.text, cut.finish_reason) == (alone.text[: alone.text.index(stop)], "stop")
    parts = client.completions.create(prompt="Mira", stream=True, **asked)
    assert "".join(chunk.choices[0].text for chunk in parts) == alone.text


def test_a_call_of_a_tool(client: openai.OpenAI, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model says what it is told to: how it is parsed is looked at."""
    said = '<think>I add.</think><tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    planned(model, monkeypatch, said)
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    asked: Any = {"model": "small", "messages": QUESTION, "tools": [tool], "max_tokens": 99, "temperature": 0}
    choice = client.chat.completions.create(**asked).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls[0].function.arguments == '{"a": 1}'
    assert (choice.message.content, choice.message.reasoning_content) == (None, "I add.")
    deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**asked, stream=True)]
    (call,) = [delta.tool_calls[0] for delta in deltas if delta.tool_calls]
    assert (call.index, call.function.name) == (0, "add")
    again = [
        *QUESTION,
        choice.message.to_dict(),
        {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "8"},
    ]
    assert client.chat.completions.create(**asked | {"messages": again}).choices


def test_the_bytes_of_the_tokens_are_the_text(
    client: openai.OpenAI, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "🙂 東京 é"
    planned(model, monkeypatch, said)
    asked: Any = {"model": "small", "temperature": 0, "max_tokens": 40}
    choice = client.chat.completions.create(messages=QUESTION, logprobs=True, top_logprobs=3, **asked).choices[0]
    assert choice.message.content == said
    assert bytes(byte for entry in choice.logprobs.content for byte in entry.bytes).decode() == said
    assert all(entry.top_logprobs[0].token == entry.token for entry in choice.logprobs.content)
    found = client.completions.create(prompt="Hi", logprobs=5, **asked).choices[0].logprobs
    for token, logprob, top in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert len(top) == 5 and max(top, key=top.get) == token and top[token] == logprob
    before = [b"".join(map(_bytes, found.tokens[:number])) for number in range(len(found.tokens))]
    places = [len(content.decode(errors="ignore")) for content in before]
    assert found.text_offset == places
    streamed = client.completions.create(prompt="Hi", logprobs=1, stream=True, **asked)
    chunks = [chunk.choices[0].logprobs for chunk in streamed if chunk.choices[0].logprobs]
    assert [place for chunk in chunks for place in chunk.text_offset] == places
    cut = client.completions.create(prompt="Hi", logprobs=1, stop=[" 東"], **asked).choices[0]
    assert cut.text == "🙂" and b"".join(map(_bytes, cut.logprobs.tokens)) == "🙂".encode()


def _bytes(name: str) -> bytes:
    return bytes.fromhex(name[6:].replace("\\x", "")) if name.startswith("bytes:") else name.encode()


SHOWS = "{{ raise_exception('SEEN ' + (tools | map('tojson') | join(' '))) if tools }}{{ messages[0].content }}"
IGNORES = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"


def test_tools_reach_the_template_as_they_were_sent(url: str, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = [{"type": "function", "function": {"name": "now", "description": "d"}, "strict": None},
             {"function": {"parameters": {"b": 1, "a": None}, "name": "f"}, "type": "function"}]  # fmt: skip
    monkeypatch.setattr(model.prompter, "template", ChatTemplate(SHOWS))
    body = json.dumps({"messages": QUESTION, "tools": tools, "max_tokens": 1}).encode()
    status, _, content = ask(url, "/v1/chat/completions", body)
    assert status == 400 and " ".join(map(json.dumps, tools)) in json.loads(content)["error"]["message"]
    body = json.dumps({"messages": QUESTION, "tools": tools, "max_tokens": 1, "chat_template_kwargs": {"tools": None}})
    assert ask(url, "/v1/chat/completions", body.encode())[0] == 200


def test_what_the_model_would_not_see_is_refused_or_told(
    url: str, model: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    template = ChatTemplate(IGNORES)
    monkeypatch.setattr(model.prompter, "template", template)
    monkeypatch.setattr(model.prompter, "_hidden", Hidden(template))
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = [*QUESTION, {"role": "assistant", "content": None, "tool_calls": [call]}]
    asked = {"messages": called, "max_tokens": 1}
    status, _, content = ask(url, "/v1/chat/completions", json.dumps(asked).encode())
    assert (
        status == 400
        and "the chat template shows no tool calls with their arguments" in json.loads(content)["error"]["message"]
    )
    tools = [{"type": "function", "function": {"name": "f"}}]
    asked = {"messages": [{"role": "system", "content": "Be brief."}, *QUESTION], "tools": tools, "max_tokens": 1}
    for _ in range(2):
        assert ask(url, "/v1/chat/completions", json.dumps(asked).encode())[0] == 200
    told = capsys.readouterr().err
    assert (
        told.count("the chat template shows no tools: ")
        == told.count("the chat template shows no system prompts: ")
        == 1
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "root", "content": "x"}]}, "known are system"),
        ({"messages": [{"role": "user", "content": "x" * 9000}]}, "context is 4096"),
        ({"max_tokens": 5000}, "context is 4096"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1"),
        ({"max_completion_tokens": 0}, "max_completion_tokens: Input should be greater than or equal to 1"),
        ({"top_logprobs": 2}, "^top_logprobs needs logprobs: set it to true, or leave top_logprobs out$"),
        ({"temperature": 9}, "temperature"),
        ({"temperature": float("nan")}, "JSON"),
        ({"top_p": 0}, "top_p"),
        ({"n": 10**6}, "n: "),
        ({"stop": ["x"] * 99}, "stop"),
        ({"stop": ""}, "^stop: is empty: give a text, or leave it out$"),
        ({"stop": ["x", ""]}, "^stop: is empty: give a text, or leave it out$"),
        ({"stream": "yes"}, "stream"),
        ({"seed": 2**70}, "seed|JSON"),
        ({"logit_bias": {"5": 100}}, "logit_bias"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "name"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"chat_template_kwargs": {"messages": []}}, "not an option"),
        ({"chat_template_kwargs": {"tools": []}}, "not an option"),
        ({"chat_template_kwargs": {"self": 1}}, "not an option"),
        ({"chat_template_kwargs": {"padding": True}}, "padding: not an option of a template"),
        ({"temperature": True}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_p": True}, "top_p"),
        ({"frequency_penalty": False}, "frequency_penalty"),
        ({"user": 5}, "user"),
        ({"metadata": 5}, "metadata"),
        ({"store": 1}, "store"),
        (
            {"messages": [{"role": "user", "text": "its content"}]},
            r"messages\[0\]: content is not a string",
        ),
        ({"max_toknes": 3}, "max_toknes: no such field"),
        ({"max_toknes": None}, "max_toknes: no such field"),
        ({"modalities": ["text", "audio"]}, "^modalities: is not supported here: leave it out$"),
        ({"functions": [{"name": "f"}]}, "^functions: is not supported here: leave it out$"),
        ({"min_tokens": 3}, "^min_tokens: is not supported here: leave it out$"),
        ({"min_tokens": False}, "^min_tokens: is not supported here: leave it out$"),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        ({"ignore_eos": 1}, "ignore_eos"),
    ],
)
def test_what_cannot_be_answered_as_asked_is_refused(url: str, change: dict[str, Any], reason: str) -> None:
    body = json.dumps({"model": "small", "messages": QUESTION, "max_tokens": 1} | change).encode()
    status, _, content = ask(url, "/v1/chat/completions", body)
    error = json.loads(content)["error"]
    assert status == 400
    assert re.search(reason, error["message"]), error
    assert set(error) == {"message", "type", "param", "code"}


def test_no_argument_of_transformers_passes_for_an_option_of_a_template() -> None:
    taken = {*signature(PreTrainedTokenizerBase.apply_chat_template).parameters} - {"kwargs"}
    assert len(taken) > 10
    assert taken <= SET_BY_SERVER | NOT_FOR_TEMPLATES


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"prompt": "a", "max_tokens": 1, "prompt": "b"}', "the body has the key 'prompt' twice: give it once"),
        ('{"prompt": "a", "metadata": [{"k": 1, "k": 1}]}', "the body has the key 'k' twice: give it once"),
        (f'{{"prompt": "a", "metadata": {"9" * 5000}}}', "the body is not JSON: "),
    ],
)
def test_a_body_that_can_be_read_in_two_ways_is_refused(url: str, body: str, said: str) -> None:
    status, _, content = ask(url, "/v1/completions", body.encode())
    assert status == 400
    assert json.loads(content)["error"]["message"].startswith(said)


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/v1/chat/completions", b"{", {}, 400),
        ("/v1/chat/completions", b"[]", {}, 400),
        ("/v1/chat/completions", b"\xff\xfe", {}, 400),
        ("/v1/chat/completions", b"[" * 200_000, {}, 400),
        ("/v1/chat/completions", b'{"metadata":' + b'{"a":' * 100 + b"1" + b"}" * 101, {}, 400),
        ("/v1/chat/completions", b'{"model": "gpt-9", "messages": [{"role": "user", "content": "x"}]}', {}, 404),
        ("/v1/chat/completions", b"{}", {"Content_Type": "text/plain"}, 415),
        ("/v1/completions", b'{"prompt": [99999999]}', {}, 400),
        ("/v1/completions", b'{"prompt": [-1]}', {}, 400),
        ("/v1/completions", b'{"prompt": ""}', {}, 400),
        ("/v1/completions", b'{"prompt": [[1], "x"]}', {}, 400),
        ("/v1/completions", None, {}, 405),
        ("/v1/embeddings", b"{}", {}, 404),
        ("/../../../../etc/passwd", None, {}, 404),
        ("/v1/%2e%2e/%2e%2e/etc/passwd", None, {}, 404),
        ("/page.html", None, {}, 404),
        ("/health", None, {"Host": "evil.example"}, 403),
        ("/v1/models", None, {"Host": "127.0.0.1.evil.example:80"}, 403),
        ("/v1/models", None, {"Host": ""}, 403),
        ("/v1/completions", b'{"prompt": "a"}', {"Origin": "https://evil.example"}, 403),
        ("/v1/completions", b'{"prompt": "a"}', {"Origin": "null"}, 403),
        ("/v1/completions", b'{"prompt": "a"}', {"Origin": "http://localhost"}, 403),
        ("/v1/completions", b'{"prompt": "a"}', {"Origin": "http://127.0.0.1.evil.example"}, 403),
    ],
)
def test_what_attackers_send(url: str, path: str, body: bytes | None, headers: dict[str, str], status: int) -> None:
    found, _, content = ask(url, path, body, **headers)
    assert found == status, content
    assert json.loads(content)["error"]["message"]
    assert ask(url, "/health")[0] == 200


def raw(url: str, sent: bytes, wait: float = 300) -> bytes:
    """What comes back until the server closes the connection."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=wait) as connection:
        connection.sendall(sent)
        found = b""
        while part := connection.recv(65536):
            found += part
        return found


def test_bodies_that_are_too_large_or_never_come(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    monkeypatch.setattr(server, "LARGEST_BODY", 1000)
    assert b"413" in raw(url, head + b"Content-Length: 2000\r\n\r\n" + b" " * 2000).splitlines()[0]
    chunk = b"3e8\r\n" + b" " * 1000 + b"\r\n"
    assert b"413" in raw(url, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 2).splitlines()[0]
    monkeypatch.setattr(server, "BODY_SECONDS", 0.3)
    assert b"408" in raw(url, head + b'Content-Length: 900\r\n\r\n{"prompt":').splitlines()[0]
    assert b"400" in raw(url, b"GET / HTTP/1.1\r\nX: " + b"a" * 40_000 + b"\r\n\r\n").splitlines()[0]
    assert b"400" in raw(url, head + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef").splitlines()[0]
    two = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    assert re.match(rb"HTTP/1.1 40[03]", raw(url, two))


def test_a_chunk_that_is_none_is_refused_and_is_no_failure_of_ours(
    model: Model, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    rest = b"Host: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    with serving(Api(model, ("small",), 12).app(None)) as url:
        for path in (b"/v1/completions", b"/v1/nothing"):
            found = raw(url, b"POST " + path + b" HTTP/1.1\r\n" + rest + b"zz\r\n")
            assert found.startswith(b"HTTP/1.1 400 ") and found.count(b"HTTP/1.1") == 1
        place = urlsplit(url)
        with socket.create_connection((place.hostname, place.port), timeout=300) as connection:
            connection.sendall(b"POST /v1/nothing HTTP/1.1\r\n" + rest)
            found = b""
            while not found.endswith(b"}}"):
                found += connection.recv(65536)
            assert found.startswith(b"HTTP/1.1 404 ")
            connection.sendall(b"zz\r\n")
            assert connection.recv(65536) == b""
    assert (capfd.readouterr().err, caplog.text) == ("", "")


def test_answers_that_are_not_finished_when_the_server_ends_are_told_so(
    never_ends: Model,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(server, "GRACE_SECONDS", 0.3)
    asked = {"prompt": "Mira", "max_tokens": 4000, "temperature": 0}
    bodies = [json.dumps(asked | {"stream": stream}).encode() for stream in (True, False)]
    with ThreadPoolExecutor(2) as pool:
        with serving(Api(never_ends, ("small",), 12).app(None)) as url:
            answers = [pool.submit(ask, url, "/v1/completions", body) for body in bodies]
            while never_ends.batch.load[0] < 2:
                time.sleep(0.01)
        (_, _, streamed), (status, _, whole) = (answer.result() for answer in answers)
    assert json.loads(streamed.splitlines()[-2].removeprefix(b"data: ")) == json.loads(whole)
    assert json.loads(whole)["error"]["message"] == "the server is shutting down"
    assert status == 503
    gc.collect()  # what nobody has asked for its exception says so now
    assert (capfd.readouterr().err, caplog.text) == ("", "")


HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /health HT",
        HEALTH + b"\r\n" + HEALTH + b"X-A: ",
        b"POST /v1/nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\nabc",
    ],
)
def test_a_connection_on_which_a_request_does_not_come_is_closed(
    url: str, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.3)
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=300) as connection:
        connection.sendall(sent)
        with pytest.raises(OSError, match=r"."):  # a byte now and then changes nothing
            for _ in range(3000):
                time.sleep(0.1)
                connection.sendall(b"a")


def test_who_goes_away_keeps_nothing_busy(url: str, never_ends: Model, caplog: pytest.LogCaptureFixture) -> None:
    place = urlsplit(url)
    body = json.dumps({"prompt": "Mira", "max_tokens": 4000, "temperature": 0, "stream": True}).encode()
    for content in (body, body.replace(b"true", b"false")):
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(content)}\r\n\r\n"
        several = [socket.create_connection((place.hostname, place.port)) for _ in range(5)]
        for one in several:
            one.sendall(head.encode() + content)
        while never_ends.batch.load[0] < 5:
            time.sleep(0.01)
        for one in several:
            one.close()
        began = time.monotonic()
        while never_ends.batch.load != (0, 0):
            time.sleep(0.01)
            assert time.monotonic() - began < 300
    assert ask(url, "/health")[0] == 200
    gc.collect()
    assert caplog.text == ""


def test_more_than_may_wait_are_told_when_to_come_again(client: openai.OpenAI, never_ends: Model) -> None:
    with pytest.raises(openai.RateLimitError, match="try again") as caught:
        client.completions.create(model="small", prompt=["Mira"] * 60, max_tokens=4000, temperature=0)
    assert caught.value.response.headers["retry-after"] == "2"
    while never_ends.batch.load != (0, 0):  # those that had a place were taken back
        time.sleep(0.01)


def test_many_clients_at_once_get_what_they_get_alone(client: openai.OpenAI, never_ends: Model) -> None:
    def answer(number: int) -> str | None:
        messages: Any = [{"role": "user", "content": f"What is {number}+{number * 7}?"}]
        asked = client.chat.completions.create(model="small", messages=messages, temperature=0, max_tokens=6)
        return asked.choices[0].message.content

    alone = [answer(number) for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(answer, range(6))) == alone


def test_a_key_is_asked_for_and_told_to_nobody(model: Model) -> None:
    with serving(Api(model, ("small",), 12).app(KEY)) as url:
        assert ask(url, "/v1/models")[0] == 401
        for wrong in ("", "Bearer", f"Bearer {KEY}x", f"Basic {KEY}", "Bearer é", KEY):
            status, _, content = ask(url, "/v1/models", Authorization=wrong.encode().decode("latin-1"))
            assert status == 401
            assert KEY.encode() not in content
        assert ask(url, "/v1/models", Authorization=f"Bearer {KEY}", Host="any.example")[0] == 200
        assert ask(url, "/health")[0] == ask(url, "/")[0] == 200
        assert KEY.encode() not in ask(url, "/")[2]


class Tags(HTMLParser):
    """What a page is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_page_stands_alone_and_escapes_what_it_shows(url: str) -> None:
    status, headers, content = ask(url, "/")
    assert status == 200
    tags = Tags()
    tags.feed(content.decode())
    assert not [tag for tag, attrs in tags.found if "src" in attrs or "href" in attrs or tag in {"link", "img"}]
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in tags.found
    labels = [attrs for tag, attrs in tags.found if tag == "textarea"]
    assert labels[0]["aria-label"]
    script = (files("nemotron_serving") / "page.html").read_text().split("<script>")[1]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", script)
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and policy.count("sha256-") == 2


@pytest.mark.slow
def test_a_client_that_does_not_read_is_left(
    url: str, never_ends: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "SEND_SECONDS", 0.5)
    asked = {"messages": QUESTION, "max_tokens": 1500, "stream": True, "logprobs": True, "top_logprobs": 20}
    body = json.dumps(asked).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    place = urlsplit(url)
    before = never_ends.batch.tokens_made
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        connection.connect((place.hostname, place.port))
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        while never_ends.batch.load == (0, 0):
            time.sleep(0.01)
        while never_ends.batch.load != (0, 0):
            time.sleep(0.05)
    assert never_ends.batch.tokens_made - before < 1499
    assert "Traceback" not in caplog.text
    assert ask(url, "/health")[0] == 200
