"""Tasks from the built-in rows and from own ones: each question once, and of the test split only."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import last_values_win

from nemotron_data.formats.eval_tasks import read_task_rows, read_tasks
from nemotron_data.split import Split
from nemotron_shared.config import registry
from nemotron_shared.system.errors import UserError
from stages.eval import data_prep
from stages.eval.tasks import TaskRows, installed_task, own_task

main = last_values_win(data_prep.main)

Prepare = Callable[..., Path]


@pytest.fixture
def prepare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Prepare:
    """Run the step, give the artifact's folder; a refusal raises its message."""

    def run(choice: str, *overrides: str) -> Path:
        settings = [f"run.home={tmp_path / 'home'}", "data_prep.workers=1", *overrides]
        code = main(["-c", choice, *settings, "--json"])
        said = capsys.readouterr()
        if code:
            raise UserError(said.err)
        return Path(json.loads(said.out.splitlines()[-1])["path"])

    return run


def rows_of(folder: Path, name: str) -> list[dict]:
    task = read_tasks(folder)[name]
    rows = list(read_task_rows(task.file, task.kind))
    assert len(rows) == task.rows
    return rows


def rejected(folder: Path) -> dict[int, str]:
    lines = (folder / "rejected.jsonl").read_text().splitlines()
    return {entry["line"]: entry["reason"] for entry in map(json.loads, lines)}


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def gsm8k(number: int) -> dict:
    return {"question": f"How many are {number}?", "answer": f"so many\n#### {number}"}


def test_an_answer_that_is_a_number_keeps_its_digits(tmp_path: Path, prepare: Prepare) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"question": "Pi?", "answer": 3.14159265358979323846}\n{"question": "Half?", "answer": 0.50}\n')
    all_to_test = "data_prep.split={train: 0.0, valid: 0.0, test: 1.0}"
    folder = prepare("local", f"data_prep.source={file}", "data_prep.answer_field=answer", all_to_test)
    name = next(iter(read_tasks(folder)))
    assert [row["expected"] for row in rows_of(folder, name)] == ["3.14159265358979323846", "0.50"]


def test_a_question_that_comes_again_with_another_answer_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [("2+2?", "4"), ("2+2?", "4"), ("2+2?", "5"), ("3+3?", "6")]
    rows = [{"question": question, "expected_answer": answer} for question, answer in answers]
    source = f"data_prep.source={write(tmp_path / 'a.jsonl', rows)}"
    words = [source, "data_prep.split={train: 0, valid: 0, test: 1}", f"run.home={tmp_path / 'home'}"]
    assert main(["-c", "local", "data_prep.workers=1", *words]) == 0
    said = "dropped 2 duplicate questions, 1 of them with a different answer (the first one counts)"
    assert said in capsys.readouterr().err


def test_the_built_in_rows_give_three_tasks_of_unique_questions(prepare: Prepare) -> None:
    folder = prepare("tiny", "data_prep.split={train: 1.0, valid: 0.0, test: 0.0}")
    assert list(read_tasks(folder)) == ["sums", "facts", "prose"]
    sums = rows_of(folder, "sums")
    assert len({row["key"] for row in sums}) == len(sums) >= 200
    assert all(row["choices"][row["answer"]] for row in rows_of(folder, "facts"))
    assert len(rows_of(prepare("tiny", "--sample", "7"), "sums")) == 7


def test_own_rows_give_the_test_split_only_and_each_question_once(tmp_path: Path, prepare: Prepare) -> None:
    rows = [gsm8k(n) for n in range(300)]
    file = write(tmp_path / "rows.jsonl", rows + rows[:50])
    shares = {"train": 0.5, "valid": 0.2, "test": 0.3}
    own = (f"data_prep.source={file}", "data_prep.split={train: 0.5, valid: 0.2, test: 0.3}")
    folder = prepare("qa", *own)
    found = rows_of(folder, "questions")
    split = Split(shares, salt="questions")
    wanted = [row["question"] for row in rows if split.of(row["question"]) == "test"]
    assert [row["question"] for row in found] == wanted, "in the order of the input"
    assert [row["text"].split("\n")[0] for row in rows_of(folder, "texts")] == wanted
    assert all(row["expected"] in row["question"] and row["key"] == row["question"] for row in found)
    few = prepare("qa", *own, "data_prep.most_questions=5")
    assert [row["question"] for row in rows_of(few, "questions")] == wanted[:5]
    assert len(rows_of(few, "texts")) == 5


def test_rows_of_text_give_the_documents_that_pretraining_holds_out(tmp_path: Path, prepare: Prepare) -> None:
    rows = [{"text": f"Note number {n}. It says nothing."} for n in range(200)]
    source = f"data_prep.source={write(tmp_path / 'notes.jsonl', rows)}"
    shares = {"train": 0.8, "valid": 0.1, "test": 0.1}
    own = (source, "data_prep.text_field=Text", "data_prep.split={train: 0.8, valid: 0.1, test: 0.1}")
    folder = prepare("local", *own)
    assert list(read_tasks(folder)) == ["texts"]
    split = Split(shares, salt="questions")
    wanted = [row["text"] for row in rows if split.of_document(row["text"]) == "test"]
    assert [row["text"] for row in rows_of(folder, "texts")] == wanted
    with pytest.raises(UserError, match=r"notes\.jsonl:1: no text in 'body' \(data_prep.text_field\)"):
        prepare("local", *own, "data_prep.text_field=body")


@pytest.mark.slow
def test_neither_shards_nor_workers_show_in_the_tasks(tmp_path: Path, prepare: Prepare) -> None:
    rows = [gsm8k(n % 4000) | {"padding": "x" * 500} for n in range(6000)]
    source = f"data_prep.source={write(tmp_path / 'rows.jsonl', rows)}"
    share = "data_prep.split={train: 0.9, valid: 0.0, test: 0.1}"
    one = prepare("qa", source, share, "data_prep.most_questions=null")
    many = prepare("qa", source, share, "data_prep.most_questions=null", "data_prep.shard_mb=1", "data_prep.workers=2")
    assert len(rows_of(one, "questions")) > 200
    for name in ("questions.jsonl", "texts.jsonl", "tasks.json", "rejected.jsonl"):
        assert (one / name).read_bytes() == (many / name).read_bytes()


@pytest.mark.parametrize("empty", ["question", "answer"])
def test_a_row_without_a_question_or_an_answer_is_refused(tmp_path: Path, prepare: Prepare, empty: str) -> None:
    rows = [{"question": "2+2?", "answer": "4"}, {"question": "3+3?", "answer": "6", empty: " "}]
    own = [f"data_prep.source={write(tmp_path / 'rows.jsonl', rows)}", "data_prep.answer_field=answer"]
    own.append("data_prep.split={train: 0, valid: 0, test: 1}")
    with pytest.raises(UserError, match=rf"rows\.jsonl:2: field '{empty}' is empty"):
        prepare("local", *own)
    folder = prepare("local", *own, "data_prep.on_bad_row=reject", "data_prep.max_lost=1")
    assert rejected(folder) == {2: f"field '{empty}' is empty"}
    assert [task.rows for task in read_tasks(folder).values()] == [1]


@pytest.mark.parametrize("word", ["NaN", "NA", "null", "None"])
def test_a_word_that_other_tools_take_for_a_missing_value_is_an_answer(
    tmp_path: Path, prepare: Prepare, word: str
) -> None:
    (tmp_path / "rows.csv").write_text(f"question,answer\nWhat is 0/0?,{word}\n")
    all_to_test = "data_prep.split={train: 0, valid: 0, test: 1}"
    folder = prepare("local", f"data_prep.source={tmp_path / 'rows.csv'}", "data_prep.answer_field=answer", all_to_test)
    assert [row["expected"] for row in rows_of(folder, next(iter(read_tasks(folder))))] == [word]


def test_every_row_that_cannot_be_asked_has_its_reason(tmp_path: Path, prepare: Prepare) -> None:
    rows = [gsm8k(1), {"question": "?"}, {"question": "?", "answer": "none"}, {"question": ["?"], "answer": "#### 1"}]
    source = f"data_prep.source={write(tmp_path / 'rows.jsonl', rows)}"
    everything = ("data_prep.split={train: 0, valid: 0, test: 1}", "data_prep.key_field=null")
    folder = prepare("qa", source, *everything, "data_prep.on_bad_row=reject", "data_prep.max_lost=1")
    assert [row["expected"] for row in rows_of(folder, "questions")] == ["1"]
    assert rejected(folder) == {2: "no field 'answer'", 3: "no answer in the field", 4: "field 'question' is not text"}
    with pytest.raises(UserError, match=r"rows\.jsonl:2: no field 'answer'"):
        prepare("qa", source, *everything, "data_prep.on_bad_row=error")
    with pytest.raises(UserError, match=r"rows\.jsonl:1: no field 'x' \(data_prep.text_template\)"):
        prepare("qa", source, *everything, "data_prep.text_template='{x}'")
    missing = write(tmp_path / "null.jsonl", [gsm8k(1) | {"x": None}])
    with pytest.raises(UserError, match=r"null\.jsonl:1: no field 'x' \(data_prep.text_template\)"):
        prepare("qa", f"data_prep.source={missing}", *everything, "data_prep.text_template='{x}'")
    with pytest.raises(UserError, match="no held-out question is left"):
        prepare(
            "qa",
            source,
            "data_prep.split={train: 1, valid: 0, test: 0}",
            "data_prep.on_bad_row=reject",
            "data_prep.max_lost=1",
        )


def test_fields_that_are_not_read_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"question": "2+2?", "expected_answer": "4", "why": {"short": "a sum"}, "system": "Be brief.", "level": 3}
    options = [f"data_prep.source={write(tmp_path / 'a.jsonl', [row])}", f"run.home={tmp_path / 'home'}"]
    assert main(["-c", "local", *options, "data_prep.text_template='{why[short]}'", "data_prep.workers=1"]) == 0
    assert "fields that are not read: system, level\n" in capsys.readouterr().err


ROW = {"question": "2+2?", "expected": "4"}
WRONG = st.one_of(
    st.none(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=2), st.builds(object),
    st.lists(st.integers(), max_size=2), st.just({1: 2}), st.just(print),
)  # fmt: skip


def offered(monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    module = ModuleType("their_tasks")
    module.make = make
    monkeypatch.setitem(sys.modules, "their_tasks", module)
    monkeypatch.setattr(registry, "installed", lambda group: (("theirs", "their_tasks:make", "their-tasks"),))


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=WRONG, where=st.sampled_from(["all", "kind", "rows", "row", "field", "extra"]))
def test_what_a_task_of_a_package_gives_is_checked_and_named(monkeypatch, value: Any, where: str) -> None:
    made = {
        "all": lambda: value, "kind": lambda: TaskRows(value, [ROW]), "rows": lambda: TaskRows("generate", value),
        "row": lambda: TaskRows("generate", [ROW, value]),
        "field": lambda: TaskRows("generate", [ROW | {"expected": value}]),
        "extra": lambda: TaskRows("generate", [ROW | {"extra": value}]),
    }[where]  # fmt: skip
    offered(monkeypatch, lambda seed: made())
    try:
        found = installed_task("theirs", 0)
    except UserError as error:
        assert "task 'theirs'" in str(error)
        return
    assert where in ("field", "extra") and json.dumps(found.rows, allow_nan=False)


def test_a_task_of_a_package_may_give_its_rows_one_by_one_and_must_have_some(monkeypatch) -> None:
    offered(monkeypatch, lambda seed: TaskRows("generate", (ROW for _ in range(2))))
    assert installed_task("theirs", 0).rows == [ROW | {"key": "2+2?"}] * 2
    offered(monkeypatch, lambda seed: TaskRows("generate", []))
    with pytest.raises(UserError, match="task 'theirs' has no rows"):
        installed_task("theirs", 0)
    offered(monkeypatch, lambda seed: 1 / 0)
    with pytest.raises(UserError, match="task 'theirs' fails: ZeroDivisionError"):
        installed_task("theirs", 0)
    offered(monkeypatch, "no function")
    with pytest.raises(UserError, match=r"task 'theirs': .* and must be a function \(seed\) -> TaskRows"):
        installed_task("theirs", 0)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ('[{"question": "2+2?", "expected": "4"}]', "generate"),
        ('[{"question": "2+2?", "choices": ["3", "4"], "answer": 1}]', "choice"),
        ('({"text": text} for text in ("Mira lives.",))', "text"),
    ],
)
def test_a_function_of_the_users_returns_rows_whose_fields_say_their_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(f"def rows(seed=0):\n    return {body}\n")
    made = own_task("rows", "mine.py:rows", 7)
    assert made.kind == kind and len([*made.rows]) == 1


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("[{'question': '2+2?'}]", "task 'rows': row 1: a row of kind 'generate' needs the field 'expected', a text"),
        ("[]", "task 'rows' has no rows"),
        ("{}", "task 'rows' returned {} instead of TaskRows"),
        ("exit(3)", "task 'rows' fails: SystemExit: 3 at mine.py:2"),
        ("[seed / 0]", "task 'rows' fails: ZeroDivisionError: division by zero at mine.py:2"),
    ],
)
def test_what_a_function_of_the_users_does_wrong_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(f"def rows(seed):\n    return {body}\n")
    with pytest.raises(UserError) as raised:
        own_task("rows", "mine.py:rows", 7)
    assert raised.value.message == told


CALL_ROW = {"question": "2+1?", "expected": "", "tools": [], "messages": [{"role": "user", "content": "2+1?"}]}


@pytest.mark.parametrize(
    ("given", "read"),
    [({}, {}), ({"arguments": '{"a": 2, "b": 0.50}'}, {"a": 2, "b": 0.5}), ({"arguments": {"a": 2}}, {"a": 2})],
)
def test_arguments_of_a_users_calls_are_read_as_openai_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], read: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    row = CALL_ROW | {"calls": [{"name": "add"} | given]}
    (tmp_path / "mine.py").write_text(f"def rows():\n    return [{row!r}]\n")
    (found,) = own_task("rows", "mine.py:rows", 7).rows
    assert json.loads(json.dumps(found["calls"])) == [{"name": "add", "arguments": read}]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"calls": [{"name": "add", "arguments": "{a"}]}, "needs calls with a name and arguments, and"),
        ({"messages": []}, "and either 'messages' or 'prompt_ids'"),
        ({"messages": ["2+1?"]}, "row 1: messages[0] is not an object"),
    ],
)
def test_rows_of_calls_that_cannot_be_asked_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(f"def rows():\n    return [{CALL_ROW | {'calls': []} | given!r}]\n")
    with pytest.raises(UserError) as raised:
        own_task("rows", "mine.py:rows", 7)
    assert told in raised.value.message


def test_a_task_from_a_file_becomes_data_with_consent_and_again_when_its_code_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    words = ["-c", "tiny", "data_prep.source=null", "data_prep.tasks=[{path: mine.py:capitals, name: towns}]"]
    for version, town in ((1, "Lima"), (2, "Oster")):
        text = f'[{{"question": "Capital of Peru?", "expected": "{town}"}}]'
        (tmp_path / "mine.py").write_text(f"def capitals():\n    return {text}\n")
        assert data_prep.main(words) == 2
        assert "this runs mine.py\n  read it, then add --trust-code to the command" in capsys.readouterr().err
        assert data_prep.main([*words, "--trust-code"]) == 0
        folder = tmp_path / f"home/artifacts/super3-eval-data/v{version}"
        assert town in (folder / "towns.jsonl").read_text()


def test_two_tasks_of_one_name_are_found_before_anything_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def sums():\n    return []\n")
    words = ["-c", "tiny", f"run.home={tmp_path}/home", "--trust-code", "--dry-run"]
    assert main([*words, "data_prep.tasks=[{path: mine.py:sums}]"]) == 1
    said = capsys.readouterr()
    assert "'sums' is already the name of a task\n" in said.err + said.out
    assert "rename yours: {path: mine.py:sums, name: my_sums}" in said.err + said.out


def test_conversations_with_calls_become_tasks_of_their_calls(prepare: Prepare, tmp_path: Path) -> None:
    def talk(number: int) -> dict[str, Any]:
        call = {
            "id": "1",
            "type": "function",
            "function": {"name": "add", "arguments": f'{{"a": {number}, "b": 0.50}}'},
        }
        return {
            "messages": [
                {"role": "user", "content": f"{number}+0.5?"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "1", "content": f"{number}.5"},
                {"role": "assistant", "content": f"{number}.5"},
            ],
            "tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}],
        }

    rows = [talk(number) for number in range(4)] + [{"question": "2+2?", "expected_answer": "4"}]
    (tmp_path / "tools.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = prepare(
        "local", f"data_prep.source={tmp_path}/tools.jsonl", "data_prep.split={train: 0.0, valid: 0.0, test: 1.0}"
    )
    tasks = read_tasks(folder)
    assert {name: (task.kind, task.rows) for name, task in tasks.items()} == {
        "questions": ("generate", 1), "calls": ("call", 4), "after_calls": ("call", 4),
    }  # fmt: skip
    called, after = (next(read_task_rows(tasks[name].file, "call")) for name in ("calls", "after_calls"))
    assert called["calls"] == [{"name": "add", "arguments": {"a": 0, "b": 0.5}}] and len(called["messages"]) == 1
    assert after["calls"] == [] and after["expected"] == "0.5" and len(after["messages"]) == 3
