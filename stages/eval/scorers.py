"""Score the answers to a task by a function of the user's own, such as a reward of training.

    evaluation.scorers=[{task: questions, path: my_rewards.py:right_call}]

The function gets what its parameters are named after: `completion`, `expected`, and `row`, the row of the task. The
task's score is the mean of its numbers, in the place of the share of right answers.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from numbers import Real
from typing import Any

from nemotron_data.formats.eval_tasks import EvalTask, read_task_rows
from nemotron_shared.config.registry import shown
from nemotron_shared.step.own_code import KEYS, OwnFunction
from nemotron_shared.system.errors import Finding, UserError, did_you_mean, problem
from stages.eval.schema import EvaluationSection

SCORABLE = ("generate", "call")
"""Kinds of tasks that are scored by written answers."""
GIVEN = KEYS["evaluation.scorers"]
MOST_SHOWN = 200


def scorer_problems(evaluation: EvaluationSection, tasks: Mapping[str, str | None]) -> Iterator[Finding]:
    """Scorers of tasks that are not there, are not scored by written answers, or have another scorer.

    Args:
        tasks: the kinds of the tasks, by name; None where it is not known yet.
    """
    counts = Counter(one.task for one in evaluation.scorers)
    for name in (name for name, count in counts.items() if count > 1):
        yield problem(f"the task '{name}' has {counts[name]} scorers", "leave one of them", "evaluation.scorers")
    for one in evaluation.scorers:
        if one.task not in tasks:
            remedy = did_you_mean(one.task, tasks, f"there are: {', '.join(tasks)}")
            yield problem(f"no task named '{one.task}'", remedy, "evaluation.scorers")
        elif tasks[one.task] not in (*SCORABLE, None):
            what = f"the task '{one.task}' is of the kind {tasks[one.task]}, which is not scored by written answers"
            yield problem(what, "leave its scorer out", "evaluation.scorers")


def scored_kinds(
    evaluation: EvaluationSection, tasks: Mapping[str, EvalTask], samples: Mapping[str, Mapping[str, list[Any]]]
) -> dict[str, str]:
    """The kind of each task's scores, which a scorer changes; the samples get its scores.

    Args:
        samples: by model and task.

    Raises:
        UserError: a function fails, or gives no number.
    """
    kinds: dict[str, str] = {name: about.kind for name, about in tasks.items()}
    for one in evaluation.scorers:
        if one.task not in tasks:  # -t leaves it out
            continue
        about, own = tasks[one.task], OwnFunction(one.path)
        function, asked = own.load(GIVEN)
        rows = list(read_task_rows(about.file, about.kind))
        for sample in (row for by_task in samples.values() for row in by_task[one.task]):
            given = {"expected": sample["expected"], "row": rows[sample["id"]]}
            values = []
            for output in sample["outputs"] if "outputs" in sample else [sample["output"]]:
                everything = {**given, "completion": output}
                values.append(_value(own, function, {name: everything[name] for name in asked}, output))
            sample |= {"score": math.fsum(values) / len(values), "scored_by": own.name}
        kinds[one.task] = "scored"
    return kinds


def _value(own: OwnFunction, function: Callable[..., Any], given: Mapping[str, Any], output: str) -> float:
    """What the function gives for an answer."""
    about = f"for the answer {output[:MOST_SHOWN]!r}"
    remedy = f"fix it in {own.written}: it must return a number for every answer"
    try:
        value = function(**given)
    except (Exception, SystemExit) as error:
        what = f"the scorer '{own.name}' raised {type(error).__name__}: {error} at {own.place_of(error)} {about}"
        raise UserError(what, remedy) from error
    try:
        is_number = isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        is_number = False
    if not is_number:
        raise UserError(f"the scorer '{own.name}' returned {shown(value)}, not a finite number, {about}", remedy)
    return float(value)
