"""Functions of the user's own score the answers to a task, with any number."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from evaluator_support import config_of

from nemotron_data.formats.eval_tasks import EvalTask
from nemotron_shared.config.registry import shown
from nemotron_shared.system.errors import UserError
from stages.eval import evaluate, train
from stages.eval.schema import EvaluationSection, Scorer
from stages.eval.scorers import scored_kinds, scorer_problems
from stages.eval.scoring import compare, score
from stages.eval.tasks import task_problems

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
    assert scored_kinds(section(), {"sums": task}, found) == {"sums": "scored"}
    assert [row["score"] for row in found["rl"]["sums"]] == [3.5, 0.0]
    assert found["rl"]["sums"][0]["scored_by"] == "right"
    several = [row | {"outputs": [row["output"]] * 2} for row in found["rl"]["sums"]]
    assert "pass_at_k" not in score("scored", several)
    result = score("scored", found["rl"]["sums"])
    assert result["metric"] == "reward" and result["value"] == 1.75
    assert compare("scored", found["base"]["sums"], found["rl"]["sums"])["difference"] == 2.25
    assert scored_kinds(section(task="facts"), {"sums": task}, found) == {"sums": "generate"}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("row['none']", "the scorer 'right' raised KeyError: 'none' at mine.py:2 for the answer '5'"),
        ("10**400", f"the scorer 'right' returned {shown(10**400)}, not a finite number, for the answer '5'"),
        ("None", "the scorer 'right' returned None, not a finite number, for the answer '5'"),
    ],
)
def test_what_it_does_wrong_is_told(task: EvalTask, tmp_path: Path, body: str, told: str) -> None:
    (tmp_path / "mine.py").write_text(f"def right(completion, row):\n    return {body}\n")
    with pytest.raises(UserError) as raised:
        scored_kinds(section(), {"sums": task}, samples())
    assert raised.value.message == told


def test_a_task_that_cannot_be_scored_is_named() -> None:
    kinds: Any = {"sums": "generate", "prose": "text"}
    assert not list(scorer_problems(section(), kinds))
    assert [str(one) for one in scorer_problems(section(task="sum"), kinds)] == [
        "no task named 'sum'\n  did you mean 'sums'?"
    ]
    (found,) = scorer_problems(section(task="prose"), kinds)
    assert found.message == "the task 'prose' is of the kind text, which is not scored by written answers"
    twice = EvaluationSection.model_construct(None, scorers=section().scorers * 2)
    assert [one.message for one in scorer_problems(twice, kinds)] == ["the task 'sums' has 2 scorers"]
    assert not list(scorer_problems(section(), {"sums": None}))


def test_answers_are_scored_by_the_first_process_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []
    monkeypatch.setattr(evaluate, "chosen_tasks", lambda task: {})
    monkeypatch.setattr(evaluate, "models_to_score", lambda task: {})
    monkeypatch.setattr(evaluate, "scored_kinds", lambda *given: asked.append("scorers"))
    monkeypatch.setattr(evaluate, "outcome", lambda output, results: results)
    monkeypatch.setattr(evaluate.distributed, "on_rank_zero", lambda work: {})  # as on the others
    run, config = SimpleNamespace(checkpoints=tmp_path), SimpleNamespace(evaluation=section())
    assert evaluate.evaluate(SimpleNamespace(run=run, config=config), lambda model, tasks: {}) == {}  # ty: ignore[invalid-argument-type]
    assert asked == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["evaluation.scorers=[{task: held_out_calls, path: mine.py:right}]"], []),
        (
            ["evaluation.scorers=[{task: held_out, path: mine.py:right}]"],
            ["the task 'held_out' is of the kind answer, which is not scored by written answers"],
        ),
        (["evaluation.scorers=[{task: helt_out, path: mine.py:right}]"], ["no task named 'helt_out'"]),
        (["evaluation.tasks=[held_out, taugth]"], ["no task named 'taugth'"]),
        (
            ["run.data=any", "evaluation.tasks=[held_out_calls, prose]", "data_prep.source=synthetic",
             "evaluation.scorers=[{task: prose, path: mine.py:right}]"],
            ["the task 'prose' is of the kind text, which is not scored by written answers"],
        ),
    ],
)  # fmt: skip
def test_the_tasks_of_held_out_rows_are_known(words: list[str], told: list[str]) -> None:
    config = config_of("held_out", *words)
    assert [one.message for one in task_problems(config, {}, None)] == told


def test_a_task_with_a_scorer_is_searched_for_in_the_training_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def short(completion):\n    return 1 / (1 + len(completion))\n")
    words = ["-c", "tiny", "evaluation.tasks=[sums]", "evaluation.limit=4", "evaluation.max_new_tokens=4"]
    words += [f"run.home={tmp_path / 'home'}", "run.threads=1", "data_prep.workers=1", "run.missing_model=random"]
    words += ["evaluation.scorers=[{task: sums, path: mine.py:short}]", "--trust-code", "--json"]
    assert train.main(words) == 0
    results = json.loads((Path(json.loads(capsys.readouterr().out)["path"]) / "results.json").read_text())
    assert results["tasks"]["sums"]["kind"] == "scored" and results["overlap"]["sums"]["of"] == 4
