"""Functions of the user's own score the answers to a task, with any number."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemotron_data.formats.eval_tasks import EvalTask
from nemotron_shared.system.errors import UserError
from stages.eval.schema import EvaluationSection, Scorer
from stages.eval.scorers import scorer_problems, with_scorers
from stages.eval.scoring import compare, score

ROWS = [
    {"question": "2+2?", "expected": "4", "key": "2+2", "most": 4.0},
    {"question": "3+3?", "expected": "6", "key": "3+3"},
]


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EvalTask:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return EvalTask("sums", "generate", 2, file)


def section(path: str = "mine.py:right", task: str = "sums") -> Any:
    return EvaluationSection.model_construct(None, scorers=[Scorer(task=task, path=path)])


def samples() -> dict[str, dict[str, list[Any]]]:
    def made(*outputs: str) -> list[Any]:
        return [{"id": place, "question": row["question"], "expected": row["expected"], "output": output, "score": 0.0}
                for place, (row, output) in enumerate(zip(ROWS, outputs, strict=True))]  # fmt: skip

    several = made("4", "six")
    several[1]["outputs"] = ["six", "6"]
    return {"base": {"sums": made("5", "six")}, "rl": {"sums": several}}


def test_its_numbers_take_the_place_of_the_verdict(task: EvalTask, tmp_path: Path) -> None:
    body = "    return row.get('most', 1) * (completion == expected) - 0.5"
    (tmp_path / "mine.py").write_text(f"def right(completion, expected, row):\n{body}\n")
    found = samples()
    tasks = with_scorers(section(), {"sums": task}, found)
    assert tasks["sums"].kind == "scored"
    assert [row["score"] for row in found["rl"]["sums"]] == [3.5, 0.0]
    assert found["rl"]["sums"][0]["scored_by"] == "right"
    result = score("scored", found["rl"]["sums"])
    assert result["metric"] == "reward" and result["value"] == 1.75
    assert compare("scored", found["base"]["sums"], found["rl"]["sums"])["difference"] == 2.25
    assert with_scorers(section(task="facts"), {"sums": task}, found) == {"sums": task}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("row['none']", "the scorer 'right' raised KeyError: 'none' at mine.py:2 for the answer '5'"),
        ("None", "the scorer 'right' returned None, not a finite number, for the answer '5'"),
    ],
)
def test_what_it_does_wrong_is_told(task: EvalTask, tmp_path: Path, body: str, told: str) -> None:
    (tmp_path / "mine.py").write_text(f"def right(completion, row):\n    return {body}\n")
    with pytest.raises(UserError) as raised:
        with_scorers(section(), {"sums": task}, samples())
    assert raised.value.message == told


def test_a_task_that_cannot_be_scored_is_named() -> None:
    kinds: Any = {"sums": "generate", "prose": "text"}
    assert not list(scorer_problems(section(), kinds))
    assert [str(one) for one in scorer_problems(section(task="sum"), kinds)] == [
        "no task named 'sum'\n  did you mean 'sums'?"
    ]
    (found,) = scorer_problems(section(task="prose"), kinds)
    assert found.message == "the task 'prose' is of the kind text, which has no written answers"
