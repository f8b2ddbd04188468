"""Held-out rows to tasks: questions with answers, choices and texts in, one JSONL file per task out.

    python stages/eval/data_prep.py -c tiny
    python stages/eval/data_prep.py data_prep.source=problems.jsonl

The built-in world gives three tasks:

    sums    {"question": "What is 3+14-5?", "expected": "12", "key": "3+14-5"}
    facts   {"question": "Where does Mira live?", "choices": ["Oster", "Kelby", ...], "answer": 0}
    prose   {"text": "Mira lives in Oster. ..."}

The user's own rows give `questions`, of the test split only, and `texts` where a text_template is set.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nemotron_data.rejects import Rejects
from nemotron_data.sources.rows import WORLD, describe_sources, open_rows, split_key
from nemotron_data.sources.whole_files import Row
from nemotron_data.split import Split
from nemotron_data.synthetic import eval_choices, eval_problems, eval_texts
from nemotron_shared.atomic import write_json, write_text
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.step import Outcome, Step, Task
from stages.eval.schema import EvalConfig, EvalData
from stages.eval.tasks import TASKS, installed_task

KINDS = {"sums": "generate", "facts": "choice", "prose": "text", "questions": "generate", "texts": "text"}

Tasks = dict[str, list[dict[str, Any]]]


def prepare(task: Task[EvalConfig]) -> Outcome:
    """Write one file per task and `tasks.json`, which says what kind each is."""
    settings: EvalData = task.config.data_prep
    output = task.run.fresh_output()
    with Rejects(output / "rejected.jsonl") as rejects:
        tasks = world_tasks(settings) if settings.source == WORLD else own_tasks(settings, rejects)
    kinds = {name: KINDS[name] for name in tasks}
    for name in settings.tasks:
        if name in tasks:
            raise UserError(f"data_prep.tasks: '{name}' is a task of this stage already", "give yours another name")
        added = installed_task(name, settings.seed)
        tasks[name], kinds[name] = list(added.rows), added.kind
    if not any(tasks.values()):
        raise UserError("no held-out question is left", "give data_prep.split.test a larger share")
    for name, rows in tasks.items():
        write_text(output / f"{name}.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    described = [{"name": name, "kind": kinds[name], "rows": len(rows)} for name, rows in tasks.items()]
    write_json(output / "tasks.json", described)
    task.run.say(", ".join(f"{len(rows)} {name}" for name, rows in tasks.items()) + f", {rejects.total} rejected")
    by_name = {about["name"]: {"kind": about["kind"], "rows": about["rows"]} for about in described}
    return Outcome(output, {"tasks": by_name, "counts": {"rejected": dict(rejects.count_by_reason)}})


def world_tasks(settings: EvalData) -> Tasks:
    """The three tasks of the built-in world."""
    sums = eval_problems(settings.seed, min(settings.world_problems, settings.sample or settings.world_problems))
    return {
        "sums": [{"question": row["question"], "expected": row["expected_answer"], "key": row["key"]} for row in sums],
        "facts": list(eval_choices(settings.seed, settings.world_choices)),
        "prose": [{"text": row["text"]} for row in eval_texts(settings.seed, settings.world_texts)],
    }


def own_tasks(settings: EvalData, rejects: Rejects) -> Tasks:
    """Tasks from the user's rows: the test split, each question once."""
    questions: dict[str, dict[str, Any]] = {}
    texts: list[dict[str, Any]] = []
    for row in _test_rows(settings, rejects):
        if settings.most_questions and len(questions) == settings.most_questions:
            break
        question = str(row.value[settings.question_field])
        if question in questions:
            continue
        questions[question] = {"question": question, "expected": answer_of(row, settings), "key": question}
        if settings.text_template:
            texts.append({"text": settings.text_template.format(**row.value)})
    return {"questions": list(questions.values()), **({"texts": texts} if texts else {})}


def _test_rows(settings: EvalData, rejects: Rejects) -> Iterator[Row]:
    split = Split(settings.split.model_dump(), salt="questions")
    rows: Iterable[Row] = open_rows(settings, eval_problems, settings.world_problems, rejects)
    for row in rows:
        try:
            answer_of(row, settings)
            key = split_key(row.value, settings, str(row.value[settings.question_field]))
        except UserError as error:
            if settings.on_bad_row == "error":
                raise
            rejects.add(row.file, row.line, error.message.split(": ")[-1].split("'")[0], str(row.value), error.message)
            continue
        if split.of(key) == "test":
            yield row


def answer_of(row: Row, settings: EvalData) -> str:
    """The expected answer of a row.

    Raises:
        UserError: a field is missing, or the answer does not match `answer_pattern`.
    """
    for field in (settings.question_field, settings.answer_field):
        if row.value.get(field) is None:
            raise UserError(f"{row.file}:{row.line}: no field '{field}'", f"fields here: {', '.join(row.value)}")
    text = str(row.value[settings.answer_field])
    if settings.answer_pattern is None:
        return text
    found = re.search(settings.answer_pattern, text)
    if found is None:
        raise UserError(f"{row.file}:{row.line}: no answer in '{text[:80]}'", "correct data_prep.answer_pattern")
    return (found[1] if found.groups() else found[0]).strip()


STEP = Step(
    stage="eval",
    verb="data_prep",
    directory=Path(__file__).resolve().parent,
    description=__doc__,
    schema=EvalConfig,
    produces="{family}-eval-data",
    artifact_type="EvalDataArtifact",
    sections=("data_prep",),
    sources=lambda config: describe_sources(config.data_prep, "held-out", config.data_prep.world_problems),
    chosen=lambda config: [TASKS.module_of(name) for name in config.data_prep.tasks],
    work=prepare,
)

if __name__ == "__main__":
    sys.exit(STEP.main())
