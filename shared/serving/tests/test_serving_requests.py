"""What clients put into requests without being told to, and fields that other servers know."""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import openai
import pytest
from serving_support import QUESTION, ask, planned

from nemotron_data.chat.prompt import Prompter
from nemotron_data.chat.template import ChatTemplate
from nemotron_serving.api import Api
from nemotron_serving.asked import NOTHING
from nemotron_serving.model import Choice, Model, merged
from nemotron_serving.server import serving


@pytest.fixture(scope="module")
def url(model: Model) -> Iterator[str]:
    with serving(Api(model, ("small",), 12).app(None)) as found:
        yield found


@pytest.fixture
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600)


def test_fields_that_ask_for_nothing_change_nothing(url: str) -> None:
    for path, asked in (("chat/completions", {"messages": QUESTION}), ("completions", {"prompt": "Mira"})):
        plain = asked | {"max_tokens": 4, "temperature": 0}
        more: dict[str, Any] = dict.fromkeys(NOTHING) | {
            "modalities": ["text"], "functions": [], "function_call": "none", "min_tokens": 0, "length_penalty": 1.0,
            "skip_special_tokens": True, "ignore_eos": False, "top_k": -1, "min_p": 0, "repetition_penalty": 1.0,
            "store": False, "service_tier": "auto", "user": "me", "metadata": {"a": "b"}, "n": None, "stop": None,
            "stream_options": None, "logit_bias": {}, "frequency_penalty": 0, "presence_penalty": None,
            "include_reasoning": True,
        }  # fmt: skip
        if "messages" in asked:
            more |= {"parallel_tool_calls": False, "tools": None, "tool_choice": None, "reasoning_effort": None}
        one, other = (
            json.loads(ask(url, f"/v1/{path}", json.dumps(body).encode())[2]) for body in (plain, plain | more)
        )
        assert one["choices"] == other["choices"] and one["usage"] == other["usage"]


def test_an_answer_goes_on_through_its_end_if_asked_to(url: str, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    planned(model, monkeypatch, "9<|im_end|>8")
    body = {"messages": QUESTION, "temperature": 0, "max_tokens": 3}
    ended, on = (
        json.loads(ask(url, "/v1/chat/completions", json.dumps(body | {"ignore_eos": ignores}).encode())[2])
        for ignores in (False, True)
    )
    assert (ended["choices"][0]["finish_reason"], on["choices"][0]["finish_reason"]) == ("stop", "length")
    assert (ended["choices"][0]["message"]["content"], on["choices"][0]["message"]["content"]) == ("9", "98")
    assert ended["usage"]["completion_tokens"] == 2  # with the token that ends it
    assert on["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("busy", [False, True])
def test_usage_comes_with_each_chunk_if_asked_for(
    client: openai.OpenAI, never_ends: Model, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    async def all_at_once(choices: Sequence[Choice]) -> AsyncIterator[Any]:
        """A busy server: the model has finished before the first chunk is written."""
        for update in [update async for update in merged(choices)]:
            yield update

    if busy:
        monkeypatch.setattr("nemotron_serving.api.merged", all_at_once)
    told = {"include_usage": True, "continuous_usage_stats": True}
    asked: Any = {"model": "small", "max_tokens": 5, "temperature": 0, "stream": True, "stream_options": told}
    for chunks in (
        [*client.chat.completions.create(messages=QUESTION, **asked)],
        [*client.completions.create(prompt="Mira", **asked)],
    ):
        counts = [chunk.usage.completion_tokens for chunk in chunks]
        assert counts == sorted(counts) and counts[-1] == 5 and len({*counts}) > 2
        assert {chunk.usage.prompt_tokens for chunk in chunks} == {chunks[0].usage.prompt_tokens}


THINKS = "{{ messages[0].content }}{{ '<think>' if enable_thinking else '<think></think>' }}"
LEVELS = "{{ messages[0].content }} {{ reasoning_effort | default('medium') }}"


@pytest.mark.parametrize(
    ("source", "effort", "prompted"),
    [
        (THINKS, "none", "<think></think>"),
        (THINKS, "low", "<think>"),
        (LEVELS, "low", " low"),
        (LEVELS, None, " medium"),
    ],
)
def test_the_effort_of_reasoning_is_the_templates_switch(
    url: str, model: Model, monkeypatch: pytest.MonkeyPatch, source: str, effort: str | None, prompted: str
) -> None:
    made = switched(model, monkeypatch, source)
    body = {"messages": QUESTION, "max_tokens": 1, "reasoning_effort": effort}
    assert ask(url, "/v1/chat/completions", json.dumps(body).encode())[0] == 200
    assert made[-1].endswith(f"What is 3+4?{prompted}")


def test_an_effort_without_a_switch_is_refused(url: str, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    switched(model, monkeypatch, "{{ messages[0].content }}")
    body = json.dumps({"messages": QUESTION, "max_tokens": 1, "reasoning_effort": "none"}).encode()
    status, _, content = ask(url, "/v1/chat/completions", body)
    assert status == 400 and "has no switch for reasoning" in json.loads(content)["error"]["message"]


def switched(model: Model, monkeypatch: pytest.MonkeyPatch, source: str) -> list[str]:
    """The model has another chat template; its prompts are kept in the list."""
    prompter, made = Prompter(model.tokenizer, model.context), list[str]()
    prompter.template = ChatTemplate(source)
    render = prompter.template.render
    monkeypatch.setattr(
        prompter.template, "render", lambda *words, **options: made.append(render(*words, **options)) or made[-1]
    )
    monkeypatch.setattr(model.prompter, "template", prompter.template)
    monkeypatch.setitem(model.prompter.__dict__, "thinking_switch", prompter.thinking_switch)
    return made


def test_one_call_alone_if_no_more_are_wanted(url: str, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    both = f"<tool_call>[{call[11:-12]}, {call[11:-12]}]</tool_call>"
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    for said in (call + call + "and more", both):
        planned(model, monkeypatch, f"<think></think>{said}")
        asked = {"messages": QUESTION, "tools": [tool], "max_tokens": 150, "temperature": 0}
        counts = []
        for parallel in (True, False):
            body = json.dumps(asked | {"parallel_tool_calls": parallel}).encode()
            (choice,) = json.loads(ask(url, "/v1/chat/completions", body)[2])["choices"]
            assert choice["finish_reason"] == "tool_calls"
            counts.append(len(choice["message"]["tool_calls"]))
        assert counts == [2, 1]
        monkeypatch.undo()
