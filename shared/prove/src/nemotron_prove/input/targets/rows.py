"""Rows of reinforcement learning and of an evaluation, and its tasks.json."""

import json
from pathlib import Path
from typing import Any

from nemotron_data.formats.eval_tasks import read_task_rows, read_tasks
from nemotron_data.formats.rl_rows import RLRow, read_rl_rows, validate
from nemotron_prove.input.second import fault_of, is_count, json_value, lines_of, require
from nemotron_prove.input.target import Files, Target

USER = {"role": "user", "content": "What is 3+14-5?"}
AGENT = {"type": "responses_api_agents", "name": "math_with_judge_simple_agent"}
ROW = {
    "responses_create_params": {"input": [USER]},
    "question": USER["content"],
    "expected_answer": "12",
    "agent_ref": AGENT,
}
CHOICES = {"options": ["a", "b"], "expected_answer": "B", "agent_ref": {**AGENT, "name": "mcqa_simple_agent"}}
OTHER = {"responses_create_params": {"input": "Write code."}, **CHOICES}
ROLES = ("user", "assistant", "system", "developer")


def as_lines(*rows: object) -> bytes:
    """Rows as JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _read_rl(folder: Path, files: Files) -> list[RLRow]:
    rows = list(read_rl_rows(folder / "train.jsonl", validate))
    assert all(isinstance(row.question + row.text, str) for row in rows)
    return rows


def _rl_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        for _, line in lines_of(files["train.jsonl"]):
            row = json_value(line, strict=False)
            require(isinstance(row, dict), "a line that is no object")
            agent, asked = row.get("agent_ref"), row.get("responses_create_params")
            require(isinstance(agent, dict) and agent.get("type") == "responses_api_agents", "no agent")
            require(isinstance(agent.get("name"), str) and agent["name"].strip(), "an agent without a name")
            require(isinstance(asked, dict), "no parameters")
            _require_prompt(asked.get("input"))
            if agent["name"] == "math_with_judge_simple_agent":
                require(isinstance(row.get("question"), str) and row["question"].strip(), "an empty question")
                require(isinstance(row.get("expected_answer"), str) and row["expected_answer"].strip(), "no answer")
            if agent["name"] == "mcqa_simple_agent":
                require(isinstance(row.get("options"), list) and row["options"], "no options")

    return fault_of(read)


def _require_prompt(items: Any) -> None:
    """The Responses API: a text, or a list of messages and other items, one of them the user's."""
    if isinstance(items, str):
        require(items.strip(), "an empty prompt")
        return
    require(isinstance(items, list), "a prompt that is no list")
    asked = False
    for item in items:
        require(isinstance(item, dict), "a turn that is no object")
        if item.get("type") not in (None, "message"):
            continue
        require(item.get("role") in ROLES, "an unknown role")
        content = item.get("content")
        parts = isinstance(content, list) and all(isinstance(part, dict) for part in content)
        require(isinstance(content, str) or parts, "a content that is no text")
        says = content.strip() if isinstance(content, str) else content
        asked = asked or (item["role"] == "user" and bool(says))
    require(asked, "nothing that the user asks")


def _task_files() -> list[Files]:
    sums = {"question": "What is 3+4?", "expected": "7", "key": "3+4"}
    facts = {"question": "Where?", "choices": ["Oster", "Kelby"], "answer": 1, "key": "town of Mira"}
    answer = {"question": "q", "expected": "4", "prompt_ids": [11, 12], "answer_ids": [23, 2], "key": "q"}
    rules = {"prompt": "Write.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    code = {"prompt": "def add(a, b):", "test": "def check(add): ...", "entry_point": "add"}
    rows = {
        "sums": ("generate", [sums, sums]),
        "facts": ("choice", [facts]),
        "prose": ("text", [{"text": "Mira."}]),
        "held": ("answer", [answer]),
        "rules": ("instructions", [rules]),
        "code": ("code", [code]),
    }
    entries = [{"name": name, "kind": kind, "rows": len(those)} for name, (kind, those) in rows.items()]
    return [
        {
            "tasks.json": json.dumps(entries).encode(),
            **{f"{name}.jsonl": as_lines(*those) for name, (_, those) in rows.items()},
        }
    ]


def _read_tasks(folder: Path, files: Files) -> dict[str, list[dict[str, Any]]]:
    return {name: list(read_task_rows(task.file, task.kind)) for name, task in read_tasks(folder).items()}


TEXTS: dict[str, tuple[str, ...]] = {
    "generate": ("question", "expected", "key"),
    "choice": ("question", "key"),
    "text": ("text",),
    "answer": ("question", "expected", "key"),
    "instructions": ("prompt",),
    "code": ("prompt", "test", "entry_point"),
}


def _tasks_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        entries = json_value(files["tasks.json"], strict=False)  # JSON leaves open which of equal keys counts
        require(isinstance(entries, list) and entries, "no list of tasks")
        names = [entry["name"] for entry in entries]
        require(len({*names}) == len(names), "a task that stands twice")
        for entry in entries:
            require(
                is_count(entry["rows"]) and isinstance(entry.get("recall", False), bool),
                "a number of rows that is none",
            )
            require(entry["name"] and not {"/", "\\", "\0"} & set(entry["name"]), "a task's name that leads elsewhere")
            for _, line in lines_of(files[f"{entry['name']}.jsonl"]):
                _require_row(json_value(line, strict=False), entry["kind"])

    return fault_of(read)


def _require_row(row: dict[str, Any], kind: str) -> None:
    for name in TEXTS[kind]:
        require(isinstance(row.get(name), str), "a field that is no text")
    if kind == "choice":
        choices, answer = row["choices"], row["answer"]
        require(isinstance(choices, list) and all(isinstance(one, str) for one in choices), "choices that are no texts")
        require(is_count(answer) and answer < len(choices), "an answer beyond the choices")
    for name in ("prompt_ids", "answer_ids") if kind == "answer" else ():
        require(isinstance(row[name], list) and row[name] and all(map(is_count, row[name])), "ids that are none")
    if kind == "instructions":
        rules, kwargs = row["instruction_id_list"], row["kwargs"]
        require(isinstance(rules, list) and isinstance(kwargs, list), "instructions that are no lists")
        require(len(rules) == len(kwargs), "instructions and kwargs of different lengths")
        require(all(isinstance(one, str) for one in rules), "an instruction without a name")
        require(all(isinstance(one, dict | None) for one in kwargs), "kwargs that are no objects")


TARGETS = (
    Target(
        "rl_rows",
        "rows of RL",
        lambda: [{"train.jsonl": as_lines(ROW, ROW)}, {"train.jsonl": as_lines(OTHER, ROW)}],
        _read_rl,
        _rl_fault,
        ("user", "assistant", "math_with_judge_simple_agent", "message", "function_call"),
        share=3,
    ),
    Target(
        "eval_tasks",
        "tasks of an evaluation",
        _task_files,
        _read_tasks,
        _tasks_fault,
        ("../x", "choice", "sums"),
        share=1.5,
    ),
)
