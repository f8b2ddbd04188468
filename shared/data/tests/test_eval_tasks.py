"""Tasks of an evaluation: written, read again, and named where they are wrong."""

import json
from pathlib import Path

import pytest

from nemotron_data.formats.eval_tasks import EvalTask, problem_of, read_task_rows, read_tasks, search_key, write_tasks
from nemotron_shared.system.errors import UserError

GENERATE = {"question": "2+2?", "expected": "4", "key": "2+2"}
CHOICE = {"question": "Where?", "choices": ["here", "there"], "answer": 1, "key": "place"}
TEXT = {"text": "a\u2028b é"}
INSTRUCTIONS = {"prompt": "Write no commas.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
CODE = {"prompt": "def f():", "test": "def check(f): f()", "entry_point": "f"}
ROWS = {"generate": GENERATE, "choice": CHOICE, "text": TEXT, "instructions": INSTRUCTIONS, "code": CODE}


def test_tasks_come_back_as_they_were_written(tmp_path: Path) -> None:
    write_tasks(tmp_path, {kind: (kind, [row, row]) for kind, row in ROWS.items()})
    found = read_tasks(tmp_path)
    assert found == {kind: EvalTask(kind, kind, 2, tmp_path / f"{kind}.jsonl") for kind in ROWS}
    assert {name: list(read_task_rows(one.file, one.kind)) for name, one in found.items()} == {
        kind: [row, row] for kind, row in ROWS.items()
    }
    assert (tmp_path / "generate.jsonl").read_text() == f"{json.dumps(GENERATE)}\n" * 2


def test_a_task_that_asks_for_what_training_states_says_so(tmp_path: Path) -> None:
    write_tasks(tmp_path, {"facts": ("choice", [CHOICE]), "sums": ("generate", [GENERATE])}, {"facts"})
    assert {name: task.recall for name, task in read_tasks(tmp_path).items()} == {"facts": True, "sums": False}


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("generate", {"expected": 4}, "'expected', a text"),
        ("generate", {"key": None}, "'key', a text"),
        ("choice", {"choices": "here"}, "'choices', a list"),
        ("choice", {"answer": True}, "'answer', a whole number"),
        ("choice", {"answer": 2}, "'answer' is 2, and there are 2 choices"),
        ("text", {"text": ["x"]}, "'text', a text"),
    ],
)
def test_a_row_of_another_kind_is_named_with_its_line(tmp_path: Path, kind: str, change: dict, message: str) -> None:
    bad = ROWS[kind] | change
    assert problem_of(ROWS[kind], kind) is None
    with pytest.raises(UserError, match="row 2"):
        write_tasks(tmp_path, {"mine": (kind, [ROWS[kind], bad])})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine.jsonl").write_text(json.dumps(ROWS[kind]) + "\n\n" + json.dumps(bad) + "\n")
    with pytest.raises(UserError) as caught:
        list(read_task_rows(tmp_path / "mine.jsonl", kind))
    assert f"mine.jsonl:3: a row of kind '{kind}'" in caught.value.message or message in caught.value.message
    assert message in caught.value.message


@pytest.mark.parametrize(
    "content",
    [{}, ["sums"], [{"name": "sums", "kind": "sum", "rows": 1}], [{"name": "gone", "kind": "text", "rows": 1}]],
)
def test_a_list_of_tasks_that_is_none_is_refused(tmp_path: Path, content: object) -> None:
    (tmp_path / "tasks.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"tasks\.json"):
        read_tasks(tmp_path)


def test_training_data_is_searched_for_the_key_of_a_sum_and_the_question_of_a_choice() -> None:
    assert [search_key(ROWS[kind]) for kind in ROWS] == ["2+2", "Where?", None, "Write no commas.", "def f():"]
    assert search_key({"question": "What is the key of 55?", "key": "world 7", "row": {}}) == "What is the key of 55?"
