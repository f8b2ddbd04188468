"""What a row needs so that a model can be prompted with it and its answer verified."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from nemotron_data.formats.rl_rows import VERIFIER_FIELDS, RLRow, validate, validate_prompt
from nemotron_data.rejects import Refused
from stages.rl.rows import gym_row, gym_rows
from stages.rl.schema import RLData

MATH = {"type": "responses_api_agents", "name": "math_with_judge_simple_agent"}
TURN = {"role": "user", "content": "2+2?"}


def forms(**changes: Any) -> RLData:
    """The settings that question rows are read by."""
    unset: dict[str, Any] = {**dict.fromkeys(("answer_pattern", "system_prompt")), "keep_fields": []}
    names = {"question_field": "question", "answer_field": "expected_answer", "agent": MATH["name"]}
    return RLData.model_construct(None, **{**unset, **names, **changes})


def math_row(**changes: Any) -> dict[str, Any]:
    row = {
        "responses_create_params": {"input": [TURN], "temperature": 0.5},
        "agent_ref": MATH,
        "question": "2+2?",
        "expected_answer": "4",
        "pass_rate": 0.25,
    }
    return {key: value for key, value in (row | changes).items() if value is not ...}


ADD = {"type": "function", "name": "add", "parameters": {}}


def with_tools(tools: Any) -> dict[str, Any]:
    return math_row(responses_create_params={"input": [TURN], "tools": tools})


def test_a_question_becomes_a_prompt_with_an_agent() -> None:
    row = {"question": "2+2?", "expected_answer": 4, "key": "2+2"}
    assert gym_row(row, forms(system_prompt="Be brief.")) == {
        "responses_create_params": {"input": [{"role": "system", "content": "Be brief."}, TURN]},
        "question": "2+2?",
        "expected_answer": "4",
        "agent_ref": MATH,
    }


def test_a_question_may_have_no_answer_and_keep_other_fields() -> None:
    row = {"question": "2+2?", "key": "2+2", "city": None, "more": 1}
    made = gym_row(row, forms(answer_field=None, keep_fields=["key", "city"]))
    assert made == {
        "key": "2+2", "city": None, "responses_create_params": {"input": [TURN]}, "question": "2+2?",
    }  # fmt: skip
    with pytest.raises(Refused, match="no field 'town'"):
        gym_row(row, forms(answer_field=None, keep_fields=["town"]))


def test_a_conversation_with_calls_gives_a_prompt_for_each_turn_that_can_be_judged() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    talk = [TURN, {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "4"}, {"role": "assistant", "content": "4"}]  # fmt: skip
    first, second = gym_rows({"messages": talk, "tools": [ADD], "key": 3}, forms(keep_fields=["key"]))
    assert first["responses_create_params"]["input"] == [TURN] and first["key"] == second["key"] == 3
    assert json.loads(first["expected_answer"]) == [{"name": "add", "arguments": {"a": 1}}]
    assert [item.get("type") for item in second["responses_create_params"]["input"]] == [
        None, "function_call", "function_call_output",
    ]  # fmt: skip
    assert (
        second["expected_answer"] == "4" and second["responses_create_params"]["tools"][0]["function"]["name"] == "add"
    )
    for row in (first, second):
        validate_prompt(row)
    with pytest.raises(Refused, match="a conversation without tool calls"):
        gym_rows({"messages": [TURN, {"role": "assistant", "content": "4"}]}, forms())


@pytest.mark.parametrize("text", ["1.50", "12", "0.00000001", "12345678901234567890.123456789"])
def test_a_decimal_is_an_answer_with_its_digits(text: str) -> None:
    assert gym_row({"question": "?", "expected_answer": Decimal(text)}, forms())["expected_answer"] == text


def test_an_answer_can_be_taken_from_a_longer_text() -> None:
    row = {"q": "2+2?", "a": "2 + 2 = 4\n#### 4 "}
    own = forms(question_field="q", answer_field="a", answer_pattern="#### (.+)")
    assert gym_row(row, own)["expected_answer"] == "4"


def test_a_whole_row_is_handed_on_as_the_same_object() -> None:
    row = math_row()
    assert gym_row(row, forms()) is row


def test_a_row_without_an_agent_gets_the_configured_one() -> None:
    assert gym_row(math_row(agent_ref=...), forms())["agent_ref"] == MATH
    assert gym_row(math_row(agent_ref={"name": MATH["name"]}), forms()) == math_row()


def test_the_configured_agent_is_not_given_to_a_row_that_it_could_not_verify() -> None:
    with pytest.raises(Refused, match="no verifier field 'options'") as refused:
        gym_row(math_row(agent_ref=...), forms(agent="mcqa_simple_agent"))
    assert refused.value.reason == "no agent_ref"
    assert "mcqa_simple_agent, which data_prep.agent takes for rows that name none" in refused.value.detail


def test_an_agent_of_ones_own_needs_no_known_fields() -> None:
    row = {"responses_create_params": {"input": [TURN]}, "agent_ref": {**MATH, "name": "my_agent"}}
    assert gym_row(row, forms()) is row


@pytest.mark.parametrize(
    "turns",
    [
        "2+2?",
        [{"role": "user", "content": [{"type": "input_text", "text": "2+2?"}]}],
        [TURN, {"type": "function_call", "name": "add", "arguments": "{}", "call_id": "1"}],
        [{"type": "message", **TURN}, {"type": "function_call_output", "call_id": "1", "output": "4"}],
        [{"role": "developer", "content": "Be brief."}, TURN],
    ],
)
def test_every_form_of_input_that_the_responses_api_knows_is_accepted(turns: Any) -> None:
    row = math_row(responses_create_params={"input": turns})
    assert gym_row(row, forms()) is row
    assert RLRow.of(row).question == "2+2?"


def test_tools_that_run_elsewhere_need_no_name() -> None:
    row = with_tools([ADD, {"type": "web_search"}, {"type": "web_search"}])
    assert gym_row(row, forms()) is row


def test_the_question_is_the_last_user_turn() -> None:
    turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}, TURN]
    assert RLRow.of(math_row(responses_create_params={"input": turns})).question == "2+2?"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"expected_answer": "4"}, "no field 'question'"),
        ({"question": "2+2?", "expected_answer": None}, "no field 'expected_answer'"),
        ({"question": ["2+2?"], "expected_answer": "4"}, "field 'question' is not text"),
        ({"question": "2+2?", "expected_answer": True}, "field 'expected_answer' is not text"),
        ({"question": "2+2?", "expected_answer": float("nan")}, "field 'expected_answer' is not a number"),
        (math_row(responses_create_params=None), "responses_create_params is not an object"),
        (math_row(responses_create_params={}), "responses_create_params.input is not a list of turns"),
        (math_row(responses_create_params={"input": [None]}), "a turn is not an object"),
        (math_row(responses_create_params={"input": [{"content": "?"}]}), "a turn's role is unknown"),
        (math_row(responses_create_params={"input": [{"role": "tool", "content": "?"}]}), "a turn's role is unknown"),
        (math_row(responses_create_params={"input": [{"role": "user"}]}), "a turn's content is not text"),
        (math_row(responses_create_params={"input": [{"role": "user", "content": ["?"]}]}), "a turn's content is not"),
        (math_row(responses_create_params={"input": []}), "no user turn"),
        (with_tools("add"), "its tools cannot be read"),
        (with_tools([{"type": "function", "parameters": {}}]), "a tool has no name"),
        (with_tools([ADD, ADD]), "two tools have the same name"),
        (with_tools([ADD, {"type": "function", "function": ADD}]), "two tools have the same name"),
        (with_tools([{**ADD, "name": "verify"}]), "a tool cannot have this name"),
        (with_tools([{**ADD, "name": "a/b"}]), "a tool cannot have this name"),
        (math_row(agent_ref={"type": MATH["type"]}), "agent_ref without a name"),
        (math_row(agent_ref={"type": MATH["type"], "name": ""}), "agent_ref without a name"),
        (math_row(agent_ref="math"), "agent_ref without a name"),
        (math_row(agent_ref={**MATH, "type": "agents"}), "agent_ref.type is not 'responses_api_agents'"),
        (math_row(expected_answer=...), "no verifier field 'expected_answer'"),
        (math_row(question=None), "no verifier field 'question'"),
        (math_row(expected_answer=4), "verifier field 'expected_answer' is not text"),
        (
            math_row(agent_ref={**MATH, "name": "code_gen_simple_agent"}, verifier_metadata={"tests": []}),
            "no verifier field 'verifier_metadata.unit_tests'",
        ),
        (
            math_row(agent_ref={**MATH, "name": "instruction_following_simple_agent"}, id=True),
            "verifier field 'id' is not text or a number",
        ),
    ],
)
def test_a_bad_row_is_refused_for_a_fixed_reason(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refused) as refused:
        gym_row(row, forms())
    assert refused.value.reason.startswith(reason)


@pytest.mark.parametrize(("field", "setting"), [("question", "question_field"), ("expected_answer", "answer_field")])
def test_a_missing_field_names_the_setting_that_finds_it(field: str, setting: str) -> None:
    row = {"question": "2+2?", "expected_answer": "4"}
    row["other"] = row.pop(field)
    with pytest.raises(Refused, match=f"no field '{field}'") as refused:
        gym_row(row, forms())
    assert str(refused.value.finding.remedy).endswith(f"data_prep.{setting}=NAME")
    assert refused.value.detail.startswith("fields here: ")
    with pytest.raises(Refused, match=f"no field '{field}': it is null; fields here: "):
        gym_row({**row, field.title(): None}, forms())


@pytest.mark.parametrize(("answer", "pattern"), [("4", "#### (.+)"), ("4 ####", "####(.*)"), ("4 ####", "####( .+)?")])
def test_an_answer_that_the_pattern_does_not_find_is_refused(answer: str, pattern: str) -> None:
    with pytest.raises(Refused, match=f"no answer in the field: '{answer}'"):
        gym_row({"question": "2+2?", "expected_answer": answer}, forms(answer_pattern=pattern))


@pytest.mark.parametrize("agent", VERIFIER_FIELDS)
def test_each_agent_misses_each_of_its_fields(agent: str) -> None:
    fields = VERIFIER_FIELDS[agent]
    samples = {str: "x", int: 1, list: ["a"], dict: {"unit_tests": []}}
    whole = math_row(agent_ref={**MATH, "name": agent}, question=..., expected_answer=...)
    whole |= {field: samples[types[0]] for field, types in fields.items() if "." not in field}
    validate(whole)
    for field in fields:
        if "." not in field:
            with pytest.raises(Refused, match=f"no verifier field '{field}'"):
                validate({key: value for key, value in whole.items() if key != field})


VALUES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=5),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
TURNS = some.fixed_dictionaries(
    {}, optional={"role": some.sampled_from(["user", "tool", 1]), "content": VALUES, "type": VALUES}
)
ROWS = some.fixed_dictionaries(
    {},
    optional={
        "responses_create_params": VALUES | some.fixed_dictionaries({"input": VALUES | some.lists(TURNS, max_size=3)}),
        "agent_ref": VALUES
        | some.fixed_dictionaries(
            {"name": VALUES | some.sampled_from(list(VERIFIER_FIELDS))}, optional={"type": some.just(MATH["type"])}
        ),
        **dict.fromkeys(("question", "expected_answer", "verifier_metadata", "options", "id", "kwargs"), VALUES),
    },
)


@settings(max_examples=500, deadline=None)
@given(ROWS)
def test_any_row_is_usable_or_refused(row: dict[str, Any]) -> None:
    try:
        made = gym_row(row, forms())
    except Refused:
        return
    assert made["agent_ref"]["type"] == MATH["type"]
    assert isinstance(RLRow.of(made).question, str)
