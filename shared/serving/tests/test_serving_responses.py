"""The Responses API, and answers that go on where a message ends."""

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from serving_support import QUESTION, ask, planned

from nemotron_serving import responses
from nemotron_serving.api import Api
from nemotron_serving.model import Model
from nemotron_serving.server import serving

SAID = "<think>8-7=1</think>It is 1."
CALLS = '<think>I add.</think>\n<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
TOOL: Any = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def url(model: Model) -> Iterator[str]:
    with serving(Api(model, ("small",), 60).app(None)) as found:
        yield found


@pytest.fixture
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600)


def test_thought_and_answer_are_items(client: openai.OpenAI, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    planned(model, monkeypatch, SAID)
    made = client.responses.create(
        model="small", input="8-7?", instructions="Think.", include=["reasoning.encrypted_content"]
    )
    assert [item.type for item in made.output] == ["reasoning", "message"]
    assert made.output[0].summary[0].text == "8-7=1"
    assert (made.output_text, made.status, made.incomplete_details) == ("It is 1.", "completed", None)
    turns = [{"role": "system", "content": "Think."}, {"role": "user", "content": "8-7?"}]
    assert made.usage.input_tokens == len(model.prompter.chat(turns).ids)
    answer = model.tokenizer(SAID, add_special_tokens=False).input_ids
    assert made.usage.output_tokens == len(answer) + 1
    thought = model.tokenizer("<think>8-7=1", add_special_tokens=False).input_ids
    assert made.usage.output_tokens_details.reasoning_tokens == len(thought)


@pytest.mark.parametrize("said", [SAID, CALLS, "no thought", "", f"<think></think>{CALLS.partition('</think>')[2]}"])
def test_a_streamed_response_is_the_whole_one(
    client: openai.OpenAI, model: Model, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    planned(model, monkeypatch, said)
    asked: Any = {"model": "small", "input": [{"role": "user", "content": "8-7?"}], "tools": [TOOL]}
    whole = client.responses.create(**asked)
    events = [*client.responses.create(**asked, stream=True)]
    assert [one.sequence_number for one in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    streamed = events[-1].response
    assert [plain(item) for item in streamed.output] == [plain(item) for item in whole.output]
    assert streamed.usage == whole.usage
    done = [one.item for one in events if one.type == "response.output_item.done"]
    assert done == streamed.output
    pieces = {"response.output_text.delta": "", "response.reasoning_summary_text.delta": ""}
    pieces |= {"response.function_call_arguments.delta": ""}
    for one in events:
        if one.type in pieces:
            pieces[one.type] += one.delta
    assert pieces["response.output_text.delta"] == whole.output_text
    calls = [item for item in whole.output if item.type == "function_call"]
    assert pieces["response.function_call_arguments.delta"] == "".join(call.arguments for call in calls)
    assert len(calls) == said.count("<tool_call>")


def plain(item: Any) -> dict[str, Any]:
    """An item without its ids, which are drawn."""
    return {name: value for name, value in item.to_dict().items() if name not in ("id", "call_id")}


def test_a_conversation_goes_on_with_items_and_with_references_to_them(
    client: openai.OpenAI, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(model, monkeypatch, CALLS)
    first = client.responses.create(model="small", input="8-7?", tools=[TOOL])
    (call,) = [item for item in first.output if item.type == "function_call"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "1"}
    question: Any = {"role": "user", "content": "8-7?"}
    said = {"id": call.call_id, "type": "function", "function": {"name": "add", "arguments": call.arguments}}
    turns = [question, {"role": "assistant", "reasoning_content": "I add.", "content": None, "tool_calls": [said]},
             {"role": "tool", "tool_call_id": call.call_id, "content": "1"}]  # fmt: skip
    chat: Any = {"model": "small", "max_tokens": 1, "tools": [{"type": "function", "function": {
        "name": "add", "parameters": TOOL["parameters"]}}]}  # fmt: skip
    wanted = client.chat.completions.create(**chat, messages=turns).usage.prompt_tokens
    whole = [item.to_dict() for item in first.output]
    referred = [{"type": "item_reference", "id": item.id} for item in first.output]
    for items in (whole, referred):
        made = client.responses.create(
            model="small", input=[question, *items, result], tools=[TOOL], max_output_tokens=1, store=False
        )
        assert made.usage.input_tokens == wanted
        assert (made.status, made.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    with pytest.raises(openai.BadRequestError, match=r"no item 'rs_.*' is kept here"):
        gone = [{"type": "item_reference", "id": made.output[0].id.replace("msg_", "rs_")}]
        client.responses.create(model="small", input=[question, *gone])


def test_only_the_newest_items_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "MOST_KEPT", 2)
    kept = responses.Kept()
    kept.add([{"id": str(number), "type": "message"} for number in range(3)])
    assert kept.resolved([{"type": "item_reference", "id": "2"}]) == [{"id": "2", "type": "message"}]
    with pytest.raises(Exception, match="no item '0'"):
        kept.resolved([{"type": "item_reference", "id": "0"}])


def test_a_form_and_a_tool_may_be_asked_for(
    client: openai.OpenAI, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    constraint = type(model.grammars).constraint
    monkeypatch.setattr(
        type(model.grammars), "constraint", lambda self, form: seen.append(form) or constraint(self, form)
    )
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    form: Any = {"format": {"type": "json_schema", "name": "sum", "schema": schema, "strict": True}}
    asked: Any = {"model": "small", "input": "8-7?", "max_output_tokens": 1}
    client.responses.create(**asked, text=form)
    client.responses.create(**asked, tools=[TOOL], tool_choice={"type": "function", "name": "add"})
    assert seen[0].schema == schema and not seen[0].tools
    assert [tool["name"] for tool in seen[1].tools] == ["add"] and seen[1].one_call


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"previous_response_id": "resp_1"}, "^previous_response_id: is not supported here: leave it out$"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type: Input should be 'function'"),
        ({"include": ["message.output_text.logprobs"]}, "^include: .* is not supported here"),
        ({"input": [{"type": "computer_call"}]}, "the prompt holds a 'computer_call'"),
        ({"input": []}, "input"),
        ({"max_output_tokens": 9000}, "context is 4096"),
        ({"tempreature": 1}, "tempreature: no such field"),
        ({"model": "gpt-9"}, "no model 'gpt-9'"),
    ],
)
def test_what_the_responses_api_has_and_this_server_has_not_is_refused(
    url: str, change: dict[str, Any], reason: str
) -> None:
    status, _, content = ask(
        url, "/v1/responses", json.dumps({"input": "Hi", "max_output_tokens": 1} | change).encode()
    )
    assert status in (400, 404)
    assert re.search(reason, json.loads(content)["error"]["message"]), content


def test_fields_that_ask_for_nothing_are_taken(url: str) -> None:
    more = dict.fromkeys(responses.NOTHING) | {"background": False, "truncation": "disabled", "store": False}
    body = {"input": "Hi", "max_output_tokens": 1, "reasoning": {"summary": "auto"}, "text": {"verbosity": "medium"}}
    assert ask(url, "/v1/responses", json.dumps(body | more).encode())[0] == 200


BEGUN = {"role": "assistant", "content": "<think>3+4=7</think>It is "}


@pytest.mark.parametrize(
    "asked",
    [
        {"messages": [*QUESTION, BEGUN], "continue_final_message": True, "add_generation_prompt": False},
        {"messages": [*QUESTION, BEGUN], "continue_final_message": True},
        {"messages": [*QUESTION, {**BEGUN, "prefix": True}]},
    ],
)
def test_an_answer_goes_on_where_the_last_message_ends(
    url: str, model: Model, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    planned(model, monkeypatch, "7.")
    status, _, content = ask(url, "/v1/chat/completions", json.dumps(asked | {"temperature": 0}).encode())
    assert status == 200, content
    made = json.loads(content)
    assert made["choices"][0]["message"]["content"] == "7."
    text = model.tokenizer.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True) + BEGUN["content"]
    assert made["usage"]["prompt_tokens"] == len(model.tokenizer(text, add_special_tokens=False).input_ids)
    prompt = model.prompter.continued([*QUESTION, BEGUN])
    assert prompt.text == text and not prompt.in_thought
    again = model.prompter.continued([*QUESTION, {**BEGUN, "content": f"<think>7</think>{'<|im_end|>'} is "}])
    ends = [token for token in again.ids if token == model.tokenizer.eos_token_id]
    assert len(ends) == 1  # the user's


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"messages": QUESTION, "continue_final_message": True}, "is not a text of the assistant"),
        ({"messages": [{**BEGUN, "prefix": True}], "add_generation_prompt": True}, "leave out one"),
        ({"messages": [{**QUESTION[0], "prefix": True}]}, r"^messages\[0\].prefix: only the last message"),
        ({"messages": [{**BEGUN, "prefix": True}, *QUESTION]}, r"^messages\[0\].prefix: only the last message"),
        ({"messages": [*QUESTION, {**BEGUN, "prefix": True}], "response_format": {"type": "json_object"}}, "to a form"),
    ],
)  # fmt: skip
def test_an_answer_that_cannot_go_on_is_refused(url: str, change: dict[str, Any], reason: str) -> None:
    status, _, content = ask(url, "/v1/chat/completions", json.dumps(change | {"max_tokens": 1}).encode())
    assert status == 400 and re.search(reason, json.loads(content)["error"]["message"]), content
