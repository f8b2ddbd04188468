"""Held-out rows to tasks: questions with answers, choices and texts in, one JSONL file per task out.

    python stages/eval/data_prep.py -c tiny
    python stages/eval/data_prep.py -c local data_prep.source=problems.jsonl

The synthetic data gives three tasks:

    sums    {"question": "What is 3+14-5?", "expected": "12", "key": "3+14-5"}
    facts   {"question": "Where does Mira live?", "choices": ["Oster", "Kelby", ...], "answer": 0}
    prose   {"text": "Mira lives in Oster. ..."}

The user's own rows give `questions`, from the test split only, and `texts` if a text_template is set; conversations
with tool calls give `calls` and `after_calls`. The steps:

    read -> split -> encode    workers turn one input shard each into questions with answers; see questions.py
         -> pack -> write      duplicates are dropped, and each task is written to one file, plus tasks.json
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if not find_spec("nemotron_shared"):
    print(f"error: this Python has none of the project's packages; say: uv run python {sys.argv[0]}", file=sys.stderr)
    sys.exit(2)

from nemotron_data.formats.eval_tasks import Kind, write_tasks
from nemotron_data.prep.pipeline import Prepared, open_inputs
from nemotron_data.prep.sampling import look_ahead
from nemotron_data.sources.datasets import SYNTHETIC, RowKind
from nemotron_data.sources.published import availability
from nemotron_data.split import Split
from nemotron_data.synthetic import eval_choices, eval_problems, eval_texts
from nemotron_data.verifier.judgement import require_decidable
from nemotron_shared.artifacts import Source
from nemotron_shared.engine.spec import Outcome, Step, Task
from nemotron_shared.step.step import run_program
from nemotron_shared.system.digest import file_digest
from nemotron_shared.system.errors import Finding, UserError
from stages.eval import benchmarks
from stages.eval.benchmarks import prepare_benchmark
from stages.eval.questions import ASKED_ALREADY, OTHERWISE, QuestionWork, collect, fields_read, task_rows
from stages.eval.schema import EvalConfig, EvalData
from stages.eval.tasks import (
    AFTER_CALLS,
    CALLS,
    FACTS,
    PROSE,
    QUESTIONS,
    SUMS,
    TASKS,
    TEXTS,
    episodes_in,
    installed_task,
    name_problems,
    own_task,
    rows_of_environment,
)

DIRECTORY = Path(__file__).resolve().parent
Tasks = dict[str, tuple[Kind, Iterable[Mapping[str, Any]]]]
ROWS = RowKind("questions", DIRECTORY / "config", eval_problems, "held-out")


def prepare(task: Task[EvalConfig]) -> Outcome:
    """Write one file per task, and `tasks.json` with the kind of each."""
    settings: EvalData = task.config.data_prep
    output = task.run.fresh_output()
    tasks, prepared = own_tasks(task, output) if settings.source is not None else ({}, None)
    recall = {FACTS} & tasks.keys()
    for name, path in ((one.name, one.path) for one in settings.tasks):
        if path is not None:
            added = own_task(name, path, settings.seed)
        elif (own_rows := rows_of_environment(name)) is not None:
            added = episodes_in(own_rows)
        else:
            added = installed_task(name, settings.seed)
        tasks[name] = (added.kind, added.rows)
        recall |= {name} if added.recall else set()
    for name, place in settings.benchmarks.chosen.items():
        tasks[name] = prepare_benchmark(name, place, output)

    # write
    written = write_tasks(output, tasks, recall)
    if empty := [name for name, one in written.items() if not one.rows]:
        raise UserError(f"the task '{empty[0]}' has no rows", "check the data it is made from")
    task.run.say(", ".join(f"{one.rows:,} {one.name}" for one in written.values()))
    by_name = {one.name: {"kind": one.kind, "rows": one.rows} for one in written.values()}
    return Outcome(output, {"tasks": by_name, "counts": prepared.totals.as_metadata() if prepared else {}})


def own_tasks(task: Task[EvalConfig], output: Path) -> tuple[Tasks, Prepared[EvalData]]:
    """Tasks made from the rows of `data_prep.source`."""
    settings: EvalData = task.config.data_prep

    # read: cut the files into shards
    inputs = open_inputs(ROWS, settings, settings.synthetic_problems, task.run)
    inputs.say_unread(fields_read)

    # split, encode: every worker keeps the questions of the test split
    prepared = inputs.process(QuestionWork(inputs.parts), output)
    prepared.require_few_lost(settings.max_lost, {})
    require_decidable(prepared.totals.counts, settings.max_lost)

    # pack: each question once, with its text
    questions, texts = collect(prepared, settings.most_questions)
    if repeated := prepared.totals.counts[ASKED_ALREADY]:
        otherwise = prepared.totals.counts[OTHERWISE]
        which = f", {otherwise:,} of them with a different answer (the first one counts)" if otherwise else ""
        task.run.say(f"dropped {repeated:,} duplicate questions{which}")
    if not questions and not texts:
        raise prepared.nothing_left("held-out question", "test")
    tasks: Tasks = {}
    if settings.source == SYNTHETIC:
        tasks[SUMS] = "generate", questions
        tasks[FACTS] = "choice", eval_choices(settings.seed, settings.synthetic_choices)
        tasks[PROSE] = "text", ({"text": row["text"]} for row in eval_texts(settings.seed, settings.synthetic_texts))
    else:
        asked = [row for row in questions if "calls" not in row]
        called = [row for row in questions if row.get("calls")]
        after = [row for row in questions if row.get("calls") == []]
        tasks |= {QUESTIONS: ("generate", asked)} if asked else {}
        tasks |= {CALLS: ("call", called)} if called else {}
        tasks |= {AFTER_CALLS: ("call", after)} if after else {}
    if texts:
        tasks[TEXTS] = "text", texts
    return tasks, prepared


def look(config: EvalConfig) -> Iterator[Finding]:
    """Check the tasks' names, and the first rows of the user's files; benchmarks check theirs when they are read."""
    settings = config.data_prep
    yield from name_problems(settings)
    parts = ROWS.parts(settings) if settings.source is not None else []
    split = Split(settings.split.model_dump(), salt="questions")
    yield from look_ahead(parts, lambda part: lambda row: task_rows(row, part.settings, split))


def sources(config: EvalConfig) -> list[Source]:
    """Every file we read, including those of benchmarks."""
    settings = config.data_prep
    own = settings.source is not None or not (settings.benchmarks.chosen or settings.tasks)
    rows = ROWS.sources(settings, settings.synthetic_problems) if own else []
    return [*rows, *benchmarks.sources(settings.benchmarks.chosen)]


def _named(config: EvalConfig) -> list[str]:
    """Tasks to add that are named, and no functions of the user's."""
    return [one.name for one in config.data_prep.tasks if one.path is None]


STEP = Step(
    __file__,
    __doc__,
    EvalConfig,
    prepare,
    sources=sources,
    look=look,
    remarks=lambda values: availability(values, ROWS.config),
    contents=lambda config: {
        f"data_prep.tasks: {name}": file_digest(file)
        for name in _named(config)
        if (file := rows_of_environment(name)) is not None
    },
    chosen=lambda config: [TASKS.module_of(name) for name in _named(config) if rows_of_environment(name) is None],
)
main = partial(run_program, STEP)

if __name__ == "__main__":
    sys.exit(main())
