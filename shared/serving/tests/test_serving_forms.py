"""Answers of a given form: JSON of a schema, and calls that a request asks for."""

import builtins
import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest
import torch
from pydantic import BaseModel
from serving_support import QUESTION, ask

from nemotron_serving.api import Api
from nemotron_serving.grammar import Form, Grammars, closed
from nemotron_serving.model import Model
from nemotron_serving.server import serving
from nemotron_shared.system.errors import UserError

PLACE = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Lima"]}, "at": {"$ref": "#/$defs/Point"}},
    "required": ["city", "at"],
    "$defs": {"Point": {"type": "object", "properties": {"x": {"type": "integer", "maximum": 99}}, "required": ["x"]}},
}  # fmt: skip
DIGIT = {"type": "integer", "minimum": 1, "maximum": 9}
ADD = {"type": "function", "function": {
    "name": "add", "parameters": {"type": "object", "properties": {"a": DIGIT}, "required": ["a"]}}}  # fmt: skip
NOW = {"type": "function", "function": {"name": "now"}}
AS_PLACE = {"type": "json_schema", "json_schema": {"name": "place", "schema": PLACE}}


def of_schema(**told: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": told}}


def named(tool: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool}}


@pytest.fixture(scope="module")
def url(model: Model) -> Iterator[str]:
    with serving(Api(model, ("small",), 300).app(None)) as found:
        yield found


@pytest.fixture
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600)


@pytest.fixture
def thoughtless(model: Model, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A request after which the model, which has random weights, cannot think for ever."""
    monkeypatch.setitem(model.__dict__, "grammars", Grammars(model.tokenizer, model.batch.ends))
    monkeypatch.delitem(model.grammars._ids, "<think>")
    return {"model": "small", "messages": QUESTION, "temperature": 1, "seed": 5}


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_json_of_its_schema(client: openai.OpenAI, thoughtless: dict[str, Any], stream: bool) -> None:
    for seed in range(3):
        asked = thoughtless | {"response_format": AS_PLACE, "n": 2, "seed": seed, "stream": stream}
        said = {0: "", 1: ""}
        for part in client.chat.completions.create(**asked) if stream else [client.chat.completions.create(**asked)]:
            for choice in part.choices:
                said[choice.index] += (choice.delta if stream else choice.message).content or ""
                assert choice.finish_reason in (None, "stop")
        for text in said.values():
            jsonschema.validate(json.loads(text), closed(PLACE))


def test_the_helper_of_openai_reads_it(client: openai.OpenAI, thoughtless: dict[str, Any]) -> None:
    class Sum(BaseModel):
        carried: bool

    found = client.chat.completions.parse(**thoughtless, response_format=Sum).choices[0].message.parsed
    assert isinstance(found, Sum)


def test_any_json_object(client: openai.OpenAI, thoughtless: dict[str, Any]) -> None:
    made = client.chat.completions.create(**thoughtless, response_format={"type": "json_object"}, max_tokens=60)
    (choice,) = made.choices
    assert choice.message.content.startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", {"add", "now"}), (named("add"), {"add"})],
)
def test_a_call_that_is_asked_for_is_made(
    client: openai.OpenAI, thoughtless: dict[str, Any], choice: Any, names: set[str]
) -> None:
    made = client.chat.completions.create(
        **thoughtless, tools=[ADD, NOW], tool_choice=choice, parallel_tool_calls=False
    )
    (found,) = made.choices
    (call,) = found.message.tool_calls
    assert found.finish_reason == "tool_calls" and found.message.content is None
    assert call.function.name in names
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == ({"a"} if call.function.name == "add" else set())


def test_with_tools_an_answer_of_a_schema_may_be_a_call(model: Model) -> None:
    tools = [ADD["function"]]
    for begin in ('{"city": "Oslo"', '<tool_call>{"name": "add", "arguments": {"a": 3}}</tool_call>'):
        constraint = model.grammars.constraint(Form(PLACE, tools))
        for token in model.tokenizer(begin, add_special_tokens=False).input_ids:
            constraint.take(token)
    with pytest.raises(ValueError, match="cannot be kept to"):
        constraint = model.grammars.constraint(Form(PLACE))
        for token in model.tokenizer("<tool_call>", add_special_tokens=False).input_ids:
            constraint.take(token)


@pytest.mark.parametrize("in_thought", [False, True])
def test_a_thought_before_it_is_free(model: Model, in_thought: bool) -> None:
    constraint = model.grammars.constraint(Form(PLACE, in_thought=in_thought))
    text = ("" if in_thought else "<think>") + 'Oslo? {"city": "Rome" \n</think>\n\n{"city": "Lima", "at": {"x": 7}}'
    ids = model.tokenizer(text, add_special_tokens=False).input_ids
    for token in ids:
        assert torch.isfinite(constraint.allowed(torch.zeros(len(model.tokenizer)))[token])
        constraint.take(token)
    allowed = torch.isfinite(constraint.allowed(torch.zeros(len(model.tokenizer)))).nonzero().flatten().tolist()
    assert set(allowed) == model.batch.ends


def test_log_probabilities_stay_the_models_own(client: openai.OpenAI, thoughtless: dict[str, Any]) -> None:
    asked = thoughtless | {"logprobs": True, "max_tokens": 1, "temperature": 0}
    free = client.chat.completions.create(**asked, top_logprobs=20).choices[0].logprobs.content[0]
    kept = client.chat.completions.create(**asked, response_format=AS_PLACE, top_logprobs=20).choices[0]
    assert kept.message.content == "{" or kept.message.content.startswith("{")
    assert [one.logprob for one in kept.logprobs.content[0].top_logprobs] == [one.logprob for one in free.top_logprobs]
    assert kept.logprobs.content[0].logprob < free.logprob


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (of_schema(name="x", schema={"not": {}}), 'keys: ."not"'),
        (of_schema(schema={"type": "nope"}), "Invalid type: nope"),
        (of_schema(name="x"), "schema: Field required"),
        ({"response_format": {"type": "grammar"}}, "response_format: .*json_schema"),
        ({"tool_choice": "required"}, "has no tools"),
        ({"tool_choice": named("f")}, "no tool named 'f'; the request has no tools"),
        ({"tools": [ADD], "tool_choice": named("f")}, "no tool named 'f'.* add"),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "^ignore_eos: "),
    ],
)  # fmt: skip
def test_a_form_that_cannot_be_kept_to_is_refused(url: str, change: dict[str, Any], reason: str) -> None:
    body = json.dumps({"messages": QUESTION, "max_tokens": 1} | change).encode()
    status, _, content = ask(url, "/v1/chat/completions", body)
    assert status == 400
    assert re.search(reason, json.loads(content)["error"]["message"]), content


def test_without_its_library_a_sentence_says_so(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *words: Any, **options: Any) -> Any:
        if name == "llguidance":
            raise ModuleNotFoundError(name)
        return real(name, *words, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UserError, match="needs the package llguidance, which is not in this environment"):
        Grammars(model.tokenizer, model.batch.ends).constraint(Form(PLACE))


def test_objects_are_closed_only_where_their_schema_says_nothing() -> None:
    given = {"properties": {"a": {"properties": {}}, "b": {"properties": {}, "additionalProperties": True}},
             "anyOf": [{"properties": {}}, {"properties": {}, "allOf": []}], "items": {"properties": {}}}  # fmt: skip
    none = {"properties": {}, "additionalProperties": False}
    assert closed(given) == {
        "properties": {"a": none, "b": {"properties": {}, "additionalProperties": True}},
        "anyOf": [none, {"properties": {}, "allOf": []}], "items": none, "additionalProperties": False,
    }  # fmt: skip
