"""Tasks from the world and from own rows: each question once, and of the test split only."""

import json
from pathlib import Path

from nemotron_data.rejects import Rejects
from nemotron_data.split import Split
from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve
from stages.eval.data_prep import own_tasks, world_tasks
from stages.eval.schema import EvalConfig, EvalData

CONFIG = Path(__file__).parent.parent / "config"


def settings(choice: str, *overrides: str) -> EvalData:
    values = resolve(compose(CONFIG, choice, overrides).tree, lambda role, field: None)
    return EvalConfig.model_validate(values).data_prep


def test_the_world_gives_three_tasks_of_unique_questions() -> None:
    tasks = world_tasks(settings("tiny"))
    assert set(tasks) == {"sums", "facts", "prose"}
    assert len({row["key"] for row in tasks["sums"]}) == len(tasks["sums"]) >= 200
    assert all(row["choices"][row["answer"]] for row in tasks["facts"])


def test_own_rows_give_the_test_split_only_and_each_question_once(tmp_path: Path) -> None:
    rows = [{"question": f"How many are {n}?", "answer": f"so many\n#### {n}"} for n in range(300)]
    rows += rows[:50]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    chosen = settings("qa", f"data_prep.source={file}", "data_prep.split={train: 0.5, valid: 0.2, test: 0.3}")
    with Rejects(tmp_path / "rejected.jsonl") as rejects:
        tasks = own_tasks(chosen, rejects)
    questions = [row["question"] for row in tasks["questions"]]
    split = Split({"train": 0.5, "valid": 0.2, "test": 0.3}, salt="questions")
    assert sorted(questions) == sorted({row["question"] for row in rows if split.of(row["question"]) == "test"})
    assert len(tasks["texts"]) == len(questions)
    assert tasks["questions"][0]["expected"] in questions[0]
