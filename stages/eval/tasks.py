"""Evaluation tasks of installed packages: entry points of the group `nemotron.eval_tasks`.

    [project.entry-points."nemotron.eval_tasks"]
    capitals = "my_package:capitals"

    def capitals(seed: int) -> EvalTask:
        return EvalTask("choice", [{"question": "Capital of Peru?", "choices": ["Lima", "Quito"], "answer": 0}])

`data_prep.tasks=[capitals]` then adds it to the data. What a row needs depends on the kind:

    generate    question, expected
    choice      question, choices, answer (the index of the right one)
    text        text
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nemotron_shared.config.registry import Registry
from nemotron_shared.errors import UserError

Kind = Literal["generate", "choice", "text"]
NEEDED = {"generate": ("question", "expected"), "choice": ("question", "choices", "answer"), "text": ("text",)}


@dataclass(frozen=True)
class EvalTask:
    """What a model is asked, and how its answers are scored."""

    kind: Kind
    rows: Sequence[dict[str, Any]]


MakeTask = Callable[[int], EvalTask]
TASKS: Registry[MakeTask] = Registry(kind="task", group="nemotron.eval_tasks", own={})


def installed_task(name: str, seed: int) -> EvalTask:
    """The rows of a package's task, as data preparation writes them.

    Raises:
        UserError: there is no such task, or a row lacks what its kind needs.
    """
    made = TASKS.load(name)(seed)
    if made.kind not in NEEDED:
        raise UserError(f"task '{name}': there is no kind '{made.kind}'", f"there are: {', '.join(NEEDED)}")
    for number, row in enumerate(made.rows, start=1):
        missing = [field for field in NEEDED[made.kind] if field not in row]
        if missing:
            raise UserError(f"task '{name}', row {number}: no {', '.join(missing)}", f"a '{made.kind}' needs it")
    # what the harness's templates and the overlap check read besides; empty where a task has no use for it
    rows = [{"key": row.get("question", row.get("text")), "stem": "", **row} for row in made.rows]
    return EvalTask(made.kind, rows)
