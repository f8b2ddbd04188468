"""Evaluation tasks: tasks.json lists them, and `<name>.jsonl` has the rows of each.

    tasks.json    [{"name": "sums", "kind": "generate", "rows": 400}, ...]

    generate    {"question": "What is 3+14-5?", "expected": "12", "key": "3+14-5"}
    choice      {"question": "Where does Mira live?", "stem": "Mira lives in", "choices": ["Oster", "Kelby"],
                 "answer": 0, "key": "town of Mira"}
    text        {"text": "Mira lives in Oster. ..."}
    answer      {"question": "<|im_start|>user ...", "expected": "4", "prompt_ids": [11, 12], "answer_ids": [23, 2],
                 "key": "<|im_start|>user ..."}
    instructions {"prompt": "Write without commas.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    call        {"question": "user: Weather in Kelby?", "expected": "<tool_call>...", "key": "Weather in Kelby?",
                 "calls": [{"name": "weather", "arguments": {"city": "Kelby"}}], "tools": [...], "messages": [...]}
    episode     {"question": "What is the key of 55?", "key": "2000000/55", "row": {...}}     a row in NeMo-Gym's form
    code        {"prompt": "def add(a, b):", "test": "def check(add): ...", "entry_point": "add"}

`key` is searched for in training data, to find questions that a model may have been trained on. A `stem` is the
sentence that a base model completes; without one it gets the question. Of a `call`, `messages` lead to the turn in
question, or `prompt_ids` in their place; without `calls`, it is the answer after a result, which calls nothing. A task
with `"recall": true` deliberately asks for facts from the training data.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from nemotron_data.formats.json_lines import REBUILD, read_lines, write_lines
from nemotron_shared.system.atomic import read_json, write_json
from nemotron_shared.system.errors import UserError, printable

TASKS = "tasks.json"
LONGEST_NAME = 200
Kind = Literal["generate", "choice", "text", "answer", "instructions", "code", "episode", "call"]
TEXT = (str, "a text")
IDS = (list, "a list of token ids")
FIELDS: dict[Kind, dict[str, tuple[type, str]]] = {
    "generate": {"question": TEXT, "expected": TEXT, "key": TEXT},
    "choice": {"question": TEXT, "choices": (list, "a list"), "answer": (int, "a whole number"), "key": TEXT},
    "text": {"text": TEXT},
    "answer": {"question": TEXT, "expected": TEXT, "prompt_ids": IDS, "answer_ids": IDS, "key": TEXT},
    "instructions": {"prompt": TEXT, "instruction_id_list": (list, "a list"), "kwargs": (list, "a list")},
    "episode": {"question": TEXT, "key": TEXT, "row": (dict, "an object")},
    "code": {"prompt": TEXT, "test": TEXT, "entry_point": TEXT},
    "call": {"question": TEXT, "expected": TEXT, "calls": (list, "a list"), "tools": (list, "a list"), "key": TEXT},
}
"""Required fields by kind, with their type and its name. Other fields are allowed."""


@dataclass(frozen=True, slots=True)
class EvalTask:
    """One task, with `rows` rows in `file`; `recall` tasks ask for facts from the training data."""

    name: str
    kind: Kind
    rows: int
    file: Path
    recall: bool = False


def read_tasks(folder: Path) -> dict[str, EvalTask]:
    """Tasks of a prepared folder by name, in their order.

    Raises:
        UserError: tasks.json is missing or malformed, or a task's file is missing.
    """
    path = folder / TASKS
    entries = read_json(path)
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{path}: needs a list of tasks", REBUILD)
    tasks: dict[str, EvalTask] = {}
    for number, entry in enumerate(entries):
        _require_entry(path, number, entry)
        if entry["name"] in tasks:
            raise UserError(f"{path}: task '{entry['name']}' stands twice", REBUILD)
        task = EvalTask(
            entry["name"], entry["kind"], entry["rows"], folder / f"{entry['name']}.jsonl", entry.get("recall") is True
        )
        if not task.file.is_file():
            raise UserError(f"{path}: the file of task '{task.name}' is missing: {task.file}", REBUILD)
        tasks[task.name] = task
    return tasks


def _require_entry(path: Path, number: int, entry: Any) -> None:
    """Refuse entries without a name, a row count or a known kind."""
    fields = entry if isinstance(entry, dict) else {}
    name, kind, rows, recall = (fields.get(key) for key in ("name", "kind", "rows", "recall"))
    counted = type(rows) is int and rows >= 0 and isinstance(recall, bool | None)
    if not isinstance(name, str) or not counted or not isinstance(kind, str) or kind not in FIELDS:
        kinds = ", ".join(get_args(Kind))
        raise UserError(f"{path}: task {number} needs 'name', 'rows' and a 'kind' of {kinds}", REBUILD)
    if not name or {"/", "\\", "\0"} & set(name) or len(name.encode("utf-8", "replace")) > LONGEST_NAME:
        raise UserError(f"{path}: task {number}: '{printable(name[:80])}' cannot be the name of a file", REBUILD)


def read_task_rows(file: Path, kind: Kind) -> Iterator[dict[str, Any]]:
    """Stream the validated rows of a task, in constant memory.

    Raises:
        UserError: naming file and line: a damaged line, or a row that does not fit the kind.
    """
    for line in read_lines(file):
        row = line.value()
        if problem := problem_of(row, kind):
            raise UserError(f"{line.place}: {problem}", REBUILD)
        yield row


def write_tasks(
    folder: Path, tasks: Mapping[str, tuple[Kind, Iterable[Mapping[str, Any]]]], recall: Collection[str] = ()
) -> dict[str, EvalTask]:
    """Write the rows of each task, and tasks.json after all of them.

    Args:
        recall: the tasks that ask for facts from the training data.

    Raises:
        UserError: a row does not fit its task's kind.
    """
    written = {}
    for name, (kind, rows) in tasks.items():
        file = folder / f"{name}.jsonl"
        written[name] = EvalTask(name, kind, write_lines(file, _checked(rows, kind, file)), file, name in recall)
    write_json(folder / TASKS, [entry_of(task) for task in written.values()])
    return written


def entry_of(task: EvalTask) -> dict[str, Any]:
    """Entry of a task in tasks.json."""
    return {"name": task.name, "kind": task.kind, "rows": task.rows, **({"recall": True} if task.recall else {})}


def _checked(rows: Iterable[Mapping[str, Any]], kind: Kind, file: Path) -> Iterator[Mapping[str, Any]]:
    for number, row in enumerate(rows, start=1):
        if problem := problem_of(row, kind):
            raise UserError(f"{file.name}: row {number}: {problem}", "correct what makes the rows of this task")
        yield row


def problem_of(row: Mapping[str, Any], kind: Kind) -> str | None:
    """Why a row does not fit its kind, or None."""
    for field, (wanted, called) in FIELDS[kind].items():
        value = row.get(field)
        if not isinstance(value, wanted) or isinstance(value, bool):  # True is an int in Python
            return f"a row of kind '{kind}' needs the field '{field}', {called}"
    if kind == "choice" and not all(isinstance(one, str) for one in row["choices"]):
        return "'choices' must hold texts only"
    if kind == "choice" and not 0 <= row["answer"] < len(row["choices"]):
        return f"'answer' is {row['answer']}, and there are {len(row['choices'])} choices, counted from 0"
    if kind == "call":
        asked = [name for name in ("messages", "prompt_ids") if isinstance(row.get(name), list) and row[name]]
        named = all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in row["calls"])
        if len(asked) != 1 or not named or not all(isinstance(one.get("arguments"), dict) for one in row["calls"]):
            return "a row of kind 'call' needs calls with a name and arguments, and either 'messages' or 'prompt_ids'"
    for field in ("prompt_ids", "answer_ids") if kind == "answer" else ():
        if not row[field] or not all(type(one) is int and one >= 0 for one in row[field]):
            return f"'{field}' needs token ids, which are whole numbers"
    if kind == "instructions":
        named = all(isinstance(one, str) for one in row["instruction_id_list"])
        told = all(isinstance(one, dict | None) for one in row["kwargs"])
        if not named or not told or len(row["kwargs"]) != len(row["instruction_id_list"]):
            return "'instruction_id_list' needs names, and 'kwargs' an object for each of them"
    return None


def search_key(row: Mapping[str, Any]) -> str | None:
    """Text to search for in training data; None for texts, which have no question.

    For a choice this is the question, because its key is only the subject, which training text may well mention; for an
    episode too, because its key may be the number of its world, which no text mentions.
    """
    names = ("question",) if "choices" in row or "row" in row else ("key", "question", "prompt")
    return next((row[name] for name in names if isinstance(row.get(name), str) and row[name].strip()), None)
