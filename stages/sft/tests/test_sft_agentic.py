"""Episodes with tools, as people have them: every form gives the same tokens, and the model learns its own alone."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from nemotron_data.formats.packed import read_packed
from nemotron_data.synthetic.episodes import LOGIC, beginnings, played
from nemotron_shared.artifacts import Artifact, Store
from stages.sft.data_prep import main

Row = dict[str, Any]
Messages = list[dict[str, Any]]
DRAWERS = LOGIC["drawers"]
EPISODES = [(row, played(DRAWERS.Episode(row), DRAWERS.solution(row), row)) for row in beginnings("drawers", 5, 40)]
"""Rows, and the messages that solve them: a question, two look-ups with their results, the answer."""
ANSWERS = 3


def calls_of(message: Row) -> list[tuple[str, Row]]:
    return [(one["function"]["name"], one["function"]["arguments"]) for one in message.get("tool_calls", ())]


def openai(row: Row, messages: Messages) -> Row:
    """Arguments are JSON text, and a call has no content."""
    said = json.loads(json.dumps(messages))
    for message in said:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
            message["content"] = None
    bare = [{key: tool[key] for key in tool if key != "type"} for tool in row["responses_create_params"]["tools"]]
    return {"messages": said, "tools": [{"type": "function", "function": tool} for tool in bare]}


def openai_former(row: Row, messages: Messages) -> Row:
    """`function_call`, and results of the role `function`."""
    said: Messages = []
    for message in messages:
        if calls := calls_of(message):
            ((name, arguments),) = calls
            called = {"name": name, "arguments": json.dumps(arguments)}
            said.append({"role": "assistant", "content": None, "function_call": called})
        elif message["role"] == "tool":
            said.append({"role": "function", "name": called["name"], "content": message["content"]})
        else:
            said.append(message)
    return {"messages": said, "functions": row["responses_create_params"]["tools"]}


def sharegpt(row: Row, messages: Messages) -> Row:
    """Turns of `function_call` and `observation`, and the tools as text."""
    names = {"user": "human", "assistant": "gpt", "tool": "observation"}
    turns = []
    for message in messages:
        if calls := calls_of(message):
            ((name, arguments),) = calls
            turns.append({"from": "function_call", "value": json.dumps({"name": name, "arguments": arguments})})
        else:
            turns.append({"from": names[message["role"]], "value": message["content"]})
    return {"conversations": turns, "tools": json.dumps(row["responses_create_params"]["tools"])}


def hermes(row: Row, messages: Messages) -> Row:
    """Calls in the text of `gpt`, and results of the role `tool` in marks."""
    turns = []
    for message in messages:
        if calls := calls_of(message):
            ((name, arguments),) = calls
            text = f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
            turns.append({"from": "gpt", "value": text})
        elif message["role"] == "tool":
            turns.append({"from": "tool", "value": f"<tool_response>\n{message['content']}\n</tool_response>"})
        else:
            turns.append({"from": {"user": "human"}.get(message["role"], "gpt"), "value": message["content"]})
    return {"conversations": turns, "tools": row["responses_create_params"]["tools"]}


def rollout(row: Row, messages: Messages) -> Row:
    """What NeMo-Gym collects: the request, and items of the Responses API."""
    items: Messages = []
    for message in messages[1:]:
        if calls := calls_of(message):
            ((name, arguments),) = calls
            (called,) = message["tool_calls"]
            about = {"type": "function_call", "call_id": called["id"], "id": "fc_1", "status": "completed"}
            items.append(about | {"name": name, "arguments": json.dumps(arguments)})
        elif message["role"] == "tool":
            about = {"type": "function_call_output", "call_id": message["tool_call_id"]}
            items.append(about | {"output": message["content"]})
        else:
            part = {"type": "output_text", "text": message["content"], "annotations": []}
            about = {"id": "m", "type": "message", "role": "assistant", "status": "completed"}
            items.append(about | {"content": [part]})
    return row | {"response": {"id": "r", "object": "response", "output": items}, "reward": 1.0, "question": "?"}


FORMS: dict[str, Callable[[Row, Messages], Row]] = {
    form.__name__: form for form in (openai, openai_former, sharegpt, hermes, rollout)
}


def prepared(folder: Path, rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> Artifact:
    folder.mkdir()
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setenv("NEMOTRON_HOME", str(folder / "home"))
    words = ["data_prep.split={train: 1, valid: 0, test: 0}", "data_prep.pack_size=4000", "data_prep.workers=1"]
    assert main(["-c", "tiny", f"data_prep.source={file}", *words]) == 0
    return Store(folder / "home").resolve("super3-sft-data:latest")


def sequences(made: Artifact) -> Iterator[tuple[bytes, bytes]]:
    """Ids and mask of each conversation, and that several share a row."""
    rows = read_packed(made.path / "train.parquet")
    assert len(rows) < len(EPISODES), "they are packed"
    for row in rows:
        starts = row.seq_start_id.tolist()
        for start, end in zip(starts, [*starts[1:], len(row.input_ids)], strict=True):
            yield row.input_ids[start:end].tobytes(), row.loss_mask[start:end].tobytes()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The messages as they are, with objects as arguments."""
    rows = [{"messages": said, "tools": row["responses_create_params"]["tools"]} for row, said in EPISODES]
    with pytest.MonkeyPatch.context() as patch:
        return prepared(tmp_path_factory.mktemp("plain") / "data", rows, patch)


@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_same_tokens_and_masks(
    plain: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    made = prepared(tmp_path / "data", [FORMS[name](*episode) for episode in EPISODES], monkeypatch)
    assert sorted(sequences(made)) == sorted(sequences(plain))


def test_what_the_model_wrote_is_learnt_and_nothing_of_the_tools(plain: Artifact) -> None:
    tokenizer = AutoTokenizer.from_pretrained(plain.path / "tokenizer")
    found = []
    for ids, mask in sequences(plain):
        tokens, learnt = np.frombuffer(ids, np.int32), np.frombuffer(mask, np.uint8)
        targets = np.flatnonzero(learnt) + 1  # the mask is shifted: position j predicts token j + 1
        parts = np.split(targets, np.flatnonzero(np.diff(targets) > 1) + 1)
        found.append(tuple(tokenizer.decode(tokens[part]) for part in parts))
    expected = []
    for row, messages in EPISODES:
        said = [message for message in messages if message["role"] == "assistant"]
        assert len(said) == ANSWERS
        texts = [json.dumps({"name": n, "arguments": a}) for message in said[:-1] for n, a in calls_of(message)]
        calls = [f"<think></think><tool_call>{text}</tool_call><|im_end|>" for text in texts]
        expected.append((*calls, f"<think></think>{row['expected_answer']}<|im_end|>"))
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"response": {"output": "text"}}, "no list of items"),
        ({"response": {"output": [{"type": "web_search_call"}]}}, "a 'web_search_call', which a chat template"),
        ({"response": {"output": [3]}}, "an item that is not an object"),
        ({"response": {"output": []}}, "no assistant turn"),
        ({"response": "text"}, "are not objects"),
    ],
)
def test_an_episode_that_cannot_be_read_has_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], change: Row, reason: str
) -> None:
    rows = [rollout(*episode) for episode in EPISODES[:8]]
    rows[7] |= change
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["-c", "tiny", f"data_prep.source={file}"]) == 2
    said = capsys.readouterr().err
    assert f"error: {file}:8: " in said and reason in said
