"""Rows of reinforcement learning, read by everybody in the same way."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemotron_data.formats.rl_rows import RLRow, Turn, encode_row, read_rl_rows, validate, validate_prompt
from nemotron_data.rejects import Refused
from nemotron_shared.system.errors import UserError

AGENT = {"type": "responses_api_agents", "name": "my_agent"}
CALL = {"type": "function_call", "name": "add", "arguments": '{"a": 2}', "call_id": "1"}
TURNS = [
    ("2+2?", (Turn("user", "2+2?"),)),
    ([{"role": "system", "content": "Brief."}, {"role": "user", "content": "2+2?"}],
     (Turn("system", "Brief."), Turn("user", "2+2?"))),
    ([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "2+"}, {"text": "2?"}]}],
     (Turn("user", "2+\n2?"),)),
    ([{"role": "user", "content": "2+2?"}, CALL],
     (Turn("user", "2+2?"), Turn("function_call", '{"name":"add","arguments":"{\\"a\\": 2}","call_id":"1"}', False))),
]  # fmt: skip


def row(asked: object, **more: object) -> dict:
    return {"responses_create_params": {"input": asked}, "agent_ref": AGENT, **more}


@pytest.mark.parametrize(("asked", "turns"), TURNS)
def test_every_form_of_a_prompt_is_read_as_turns(asked: object, turns: tuple[Turn, ...]) -> None:
    value = row(asked, expected_answer=4)
    validate(value)
    found = RLRow.of(value)
    assert (found.prompt, found.expected_answer, found.agent) == (turns, "4", "my_agent")
    assert found.question.replace("\n", "") == "2+2?"
    assert all(turn.text in found.text for turn in turns)


@pytest.mark.parametrize("value", [{}, row(None), row([3, None]), {"responses_create_params": 3, "agent_ref": "x"}])
def test_a_row_that_is_refused_can_still_be_shown(value: dict) -> None:
    with pytest.raises(Refused):
        validate(value)
    found = RLRow.of(value)
    assert (found.prompt, found.question, found.expected_answer) == ((), "", None)


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    rows = [row("2+2?", n=2**70), row([{"role": "user", "content": "a\u2028b\r\n"}], expected_answer="é")]
    (tmp_path / "train.jsonl").write_bytes(b"".join(map(encode_row, rows)) + b"\n")
    found = list(read_rl_rows(tmp_path / "train.jsonl", check=validate))
    assert [one.value for one in found] == rows
    assert [one.place for one in found] == [f"{tmp_path / 'train.jsonl'}:{number}" for number in (1, 2)]
    with pytest.raises(Refused, match="no form for"):
        encode_row({"x": float("nan")})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"cut', "train.jsonl:3: damaged row"),
        ("[1]", "train.jsonl:3: damaged row (no object)"),
        (json.dumps(row([])), "train.jsonl:3: damaged row (no user turn"),
        (json.dumps({**row("x"), "agent_ref": {"name": "x"}}), "train.jsonl:3: damaged row (agent_ref.type"),
    ],
)
def test_a_bad_line_is_named_with_its_place(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text("\n".join([json.dumps(row("2+2?")), "", line]))
    with pytest.raises(UserError) as caught:
        list(read_rl_rows(file, check=validate))
    assert message in caught.value.message and "--force" in str(caught.value.remedy)


def test_who_sends_no_row_to_an_agent_needs_none() -> None:
    value = {"responses_create_params": {"input": "2+2?"}}
    validate_prompt(value)
    with pytest.raises(Refused, match="agent_ref"):
        validate(value)


@pytest.mark.parametrize("tools", ["find", 5, [1], [{"type": "function"}], [{"function": 3}], [{"type": "web_search"}]])
def test_tools_that_cannot_be_read_have_no_names(tools: Any) -> None:
    find = {"type": "function", "name": "find", "parameters": {}}
    assert RLRow.of({"responses_create_params": {"input": "?", "tools": [find]}}).tools == ["find"]
    assert RLRow.of({"responses_create_params": {"input": "?", "tools": tools}}).tools == []
