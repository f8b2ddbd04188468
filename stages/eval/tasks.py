"""Evaluation tasks of the user's own: functions in a file, or entry points of the group `nemotron.eval_tasks`.

    data_prep.tasks=[{path: my_tasks.py:capitals}]

    def capitals():
        return [{"question": "Capital of Peru?", "choices": ["Lima", "Quito"], "answer": 0}]

    [project.entry-points."nemotron.eval_tasks"]
    capitals = "my_package:capitals"

    def capitals(seed: int) -> TaskRows:
        return TaskRows("choice", [{"question": "Capital of Peru?", "choices": ["Lima", "Quito"], "answer": 0}])

`data_prep.tasks=[capitals]` then adds that of a package to the data. `nemotron_data.formats.eval_tasks` lists the
fields of a row; a row without a `key` gets its question as the key. The name of an environment in ./environments adds
the rows of its `data/validation.jsonl`, as NeMo-Gym calls rows to evaluate on.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from nemotron_data.chat.prompt import asked_messages
from nemotron_data.chat.rows import arguments_of, to_json
from nemotron_data.formats.eval_tasks import FIELDS, EvalTask, Kind, problem_of, read_task_rows, read_tasks
from nemotron_data.formats.rl_rows import CORRECT_ROW, RLRow, read_rl_rows, validate_prompt
from nemotron_data.gym.catalogue import OWN, agent_for, agents_of, find_environments
from nemotron_data.gym.server import tools_of
from nemotron_data.held_out import episode_of
from nemotron_data.sources.datasets import SYNTHETIC
from nemotron_data.synthetic import BEGINNINGS, counter, episodes
from nemotron_shared.config.registry import Registry, shown
from nemotron_shared.engine.engine import Inputs
from nemotron_shared.step.own_code import KEYS, OwnFunction
from nemotron_shared.system.errors import Finding, UserError, did_you_mean, problem
from stages.eval.benchmarks import BENCHMARKS, benchmark_problems
from stages.eval.schema import EvalConfig, EvalData, EvaluationSection
from stages.eval.scorers import scorer_problems

HELD_OUT_EPISODES = 400
SUMS, FACTS, PROSE = "sums", "facts", "prose"
QUESTIONS, TEXTS = "questions", "texts"
"""Tasks made from the user's own rows; the text task only if `data_prep.text_template` is set."""
CALLS, AFTER_CALLS = "calls", "after_calls"
"""Tasks made from the user's own conversations with tool calls: the calls, and answers after their results."""
HELD_OUT, TAUGHT = "held_out", "taught"
"""Tasks of rows of the model's own training data."""


@dataclass(frozen=True)
class TaskRows:
    """Rows of a task and the kind that decides how they are scored; `recall`: training states the answers."""

    kind: Kind
    rows: Iterable[dict[str, Any]]
    recall: bool = False


def drawers(seed: int) -> TaskRows:
    """Beginnings of the environment `drawers` in worlds that no training row has."""
    return TaskRows("episode", _held_out("drawers", seed))


def drawers_text(seed: int) -> TaskRows:
    """The same, in words."""
    return TaskRows("episode", _held_out("drawers_text", seed))


def example_session_state_mgmt(seed: int) -> TaskRows:
    """Beginnings of NeMo-Gym's counter, with questions that no training row asks."""
    return TaskRows("episode", _held_out(counter.NAME, seed))


def _held_out(name: str, seed: int) -> Iterator[dict[str, Any]]:
    for row in BEGINNINGS[name](seed, HELD_OUT_EPISODES, episodes.HELD_OUT):
        question = row["responses_create_params"]["input"][0]["content"]
        key = f"world {row['world']}" if "world" in row else f"{row['initial_count']} {question}"
        yield {"question": question, "key": key, "row": row}


def rows_of_environment(name: str) -> Path | None:
    """The file with the rows to evaluate on, if a task is the name of an environment of the user's own.

    Raises:
        UserError: there is no such file.
    """
    folder = OWN / name
    if not folder.is_dir():
        return None
    file = folder / "data" / "validation.jsonl"
    if not file.is_file():
        what = f"data_prep.tasks: the environment '{name}' has no rows to evaluate on: {file}"
        raise UserError(what, f"make some, as by: python {folder}/rows.py 200 {file}")
    return file


def episodes_in(file: Path) -> TaskRows:
    """Rows in NeMo-Gym's form as a task; raises UserError for one that is not."""
    found = read_rl_rows(file, check=validate_prompt, fault="not a row in NeMo-Gym's form", remedy=CORRECT_ROW)
    return TaskRows("episode", [episode_of(row) for row in found])


BY_FIELDS: tuple[Kind, ...] = ("call", "generate", "choice", "text")
"""Kinds that a row of the user's tells by its fields."""
MakeTask = Callable[[int], TaskRows]
TASKS: Registry[MakeTask] = Registry(
    kind="task",
    group="nemotron.eval_tasks",
    own={name: f"stages.eval.tasks:{name}" for name in ("drawers", "drawers_text", counter.NAME)},
    is_one=callable,
    what="a function (seed) -> TaskRows",
)


def own_task(name: str, path: str, seed: int) -> TaskRows:
    """The rows that a function in the user's own file returns: `TaskRows`, or rows whose fields say their kind.

    Raises:
        UserError: it cannot be called, or returns something invalid.
    """
    own = OwnFunction(path)
    function, asked = own.load(KEYS["data_prep.tasks"])
    return _checked(name, lambda: function(**dict.fromkeys(asked, seed)), own.written, own.place_of)


def installed_task(name: str, seed: int) -> TaskRows:
    """The rows of a package's task, in the form that data preparation writes.

    Raises:
        UserError: unknown task, or its function returns something invalid.
    """
    return _checked(name, lambda: TASKS.load(name)(seed), TASKS.module_of(name))


def _as_task(made: Any) -> Any:
    """Rows without a kind as a task: the kind is the first whose fields the first row has."""
    if isinstance(made, TaskRows) or not isinstance(made, Iterable) or isinstance(made, str | Mapping):
        return made
    rows = list(made)
    first = {"key": "", **rows[0]} if rows and isinstance(rows[0], dict) else {}
    kind = next((one for one in BY_FIELDS if FIELDS[one].keys() <= first.keys()), "generate")
    return TaskRows(kind, rows)


def _checked(
    name: str, make: Callable[[], Any], place: str, place_of: Callable[[BaseException], str] | None = None
) -> TaskRows:
    """What a function made, in the form that data preparation writes.

    Args:
        place: where the function is.
        place_of: the line that an error comes from.
    """
    remedy = f"fix it in {place}"
    try:
        made = _as_task(make())
        rows = list(made.rows) if isinstance(made, TaskRows) else []
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # a plugin may raise anything
        where = f" at {place_of(error)}" if place_of is not None else ""
        raise UserError(f"task '{name}' fails: {type(error).__name__}: {error}{where}", remedy) from error
    if not isinstance(made, TaskRows):
        raise UserError(f"task '{name}' returned {shown(made)} instead of TaskRows", remedy)
    if not isinstance(made.kind, str) or made.kind not in FIELDS:
        raise UserError(f"task '{name}': unknown kind {shown(made.kind)}", f"choose one of: {', '.join(FIELDS)}")
    if not rows:
        raise UserError(f"task '{name}' has no rows", remedy)
    # the harness's template needs a stem, even an empty one
    extra = {"stem": ""} if made.kind == "choice" else {}
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict) or not all(isinstance(field, str) for field in row):
            raise UserError(f"task '{name}': row {number} is {shown(row)}, not an object", remedy)
        row = with_arguments(row) if made.kind == "call" else row
        rows[number - 1] = {"key": row.get("question"), **extra, **row}
        fault = problem_of(rows[number - 1], made.kind) or _no_json(row)
        if fault := fault or (_no_messages(row) if made.kind == "call" else None):
            raise UserError(f"task '{name}': row {number}: {fault}", remedy)
    return TaskRows(made.kind, rows, made.recall is True)


def with_arguments(row: dict[str, Any]) -> dict[str, Any]:
    """A row of calls whose arguments are objects where they were JSON text, as OpenAI writes them, or left out."""
    calls = row.get("calls")
    if not isinstance(calls, list) or not all(isinstance(one, dict) for one in calls):
        return row

    def read(given: Any) -> Any:
        found = arguments_of(given) if given is None or isinstance(given, str) else None
        return given if found is None else json.loads(to_json(dict(found)))

    return row | {"calls": [one | {"arguments": read(one.get("arguments"))} for one in calls]}


def _no_messages(row: dict[str, Any]) -> str | None:
    """Why no template could show the messages of a row."""
    try:
        asked_messages(row.get("messages", ()))
    except ValueError as error:
        return str(error)
    return None


def _agent_problems(config: EvalConfig, tasks: Iterable[EvalTask]) -> Iterator[Finding]:
    """For each task, the first row whose agent or tools the environments do not have."""
    section, tasks = config.evaluation.environments, list(tasks)
    if section is None or not tasks:
        return
    if fault := section.lacks_room(config.evaluation.max_new_tokens):
        key = "evaluation.environments.max_episode_tokens"
        yield problem(fault, f"set {key} to more, or evaluation.max_new_tokens to fewer", key)
    environments = find_environments(section.servers)
    agents, tools = agents_of(environments), tools_of(environments)
    for task in tasks:
        for number, row in enumerate(islice(read_task_rows(task.file, task.kind), config.evaluation.limit), start=1):
            try:
                agent_for(RLRow.of(row["row"]), agents, tools.get)
            except UserError as error:
                what = f"{task.file}:{number}: {error.message}"
                yield problem(what, error.remedy, "evaluation.environments.servers")
                break


def _no_json(row: dict[str, Any]) -> str | None:
    """Why a row cannot be written as JSON."""
    try:
        json.dumps(row, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    return None


def own_tasks(settings: EvalData) -> dict[str, Kind]:
    """The kinds of the tasks that `data_prep.source` can give, by name."""
    if settings.source is None:
        return {}
    if settings.source == SYNTHETIC:
        return {SUMS: "generate", FACTS: "choice", PROSE: "text"}
    asked: dict[str, Kind] = {QUESTIONS: "generate", CALLS: "call", AFTER_CALLS: "call"}
    texts: dict[str, Kind] = {TEXTS: "text"}
    if settings.text_field is not None:
        return texts
    return asked if settings.text_template is None else asked | texts


def name_problems(settings: EvalData) -> Iterator[Finding]:
    """Added tasks that have the name of another one."""
    known = {*own_tasks(settings), *settings.benchmarks.chosen}
    for one in settings.tasks:
        if one.name in known:
            what = f"'{one.name}' is already the name of a task"
            remedy = "leave it out" if one.path is None else f"rename yours: {{path: {one.path}, name: my_{one.name}}}"
            yield problem(what, remedy, "data_prep.tasks")
        known.add(one.name)


def held_out_kinds(evaluation: EvaluationSection) -> dict[str, Kind]:
    """The kinds of the tasks that `evaluation.held_out` can give, by name; which of them, the model's data decides."""
    kinds: dict[str, Kind] = {HELD_OUT: "answer"}
    kinds |= {TAUGHT: "answer"} if evaluation.taught else {}
    calls = (CALLS, AFTER_CALLS) if evaluation.sample_answers else ()
    return kinds | {f"{HELD_OUT}_{name}": "call" for name in calls}


def unknown_tasks(evaluation: EvaluationSection, known: Collection[str]) -> Iterator[Finding]:
    """Selected tasks that are not there."""
    for name in evaluation.tasks or ():
        if name not in known:
            remedy = did_you_mean(name, known, f"there are: {', '.join(known)}")
            yield problem(f"no task named '{name}'", remedy, "evaluation.tasks")


def task_problems(config: EvalConfig, inputs: Inputs, recipe: str | None) -> Iterator[Finding]:
    """Selected tasks that the data does not have, or will not have once prepared."""
    data, asks_rows = inputs.get("data"), config.engine.name == "lm_eval"
    if config.evaluation.held_out and not asks_rows:
        yield problem("held-out rows need engine=lm_eval", "set engine=lm_eval", "evaluation.held_out")
    if config.run.data is None and asks_rows and not config.evaluation.held_out:
        yield problem("run.data is null, so no task can run", "set run.data, or evaluation.held_out=true")
    kinds: dict[str, Kind | None] = {}
    if config.run.data is not None and data is not None:
        there = read_tasks(data.path)
        kinds |= {name: one.kind for name, one in there.items()}
        yield from _data_problems(config, there)
    elif config.run.data is not None:
        kinds |= own_tasks(config.data_prep) | dict.fromkeys(one.name for one in config.data_prep.tasks)
        kinds |= {name: BENCHMARKS[name].kind for name in config.data_prep.benchmarks.chosen}
    if config.run.data is not None:
        yield from benchmark_problems(config, config.evaluation.tasks or list(kinds))
    if config.evaluation.held_out and asks_rows:
        kinds |= held_out_kinds(config.evaluation)
    if kinds:  # else the launcher, whose tasks are in its own section
        yield from scorer_problems(config.evaluation, kinds)
        yield from unknown_tasks(config.evaluation, kinds)


def _data_problems(config: EvalConfig, there: Mapping[str, EvalTask]) -> Iterator[Finding]:
    """Selected tasks of the data that cannot be asked as the config is."""
    chosen, asks_rows = config.evaluation.tasks or there, config.engine.name == "lm_eval"
    played = [name for name in chosen if name in there and there[name].kind == "episode"]
    if played and config.evaluation.environments is None:
        yield problem(f"the task '{played[0]}' is played with an environment", "name it", "evaluation.environments")
    called = [name for name in chosen if name in there and there[name].kind == "call"]
    if called and not asks_rows:
        yield problem(f"the task '{called[0]}' is scored by lm_eval's models", "say engine=lm_eval", "engine.name")
    if played and not asks_rows:
        yield problem(f"the task '{played[0]}' is played by lm_eval's models", "say engine=lm_eval", "engine.name")
    yield from _agent_problems(config, [there[name] for name in played])
