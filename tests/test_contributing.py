"""The examples of CONTRIBUTING do what it says: each is run in the module that it belongs to."""

import re
import textwrap
from types import ModuleType
from typing import Any

from support import ROOT

from nemotron_data.chat import formats, rows
from nemotron_data.chat.thought import after_thought
from nemotron_data.formats.eval_tasks import problem_of
from stages.eval import tasks


def example(title: str, module: ModuleType | None = None, **more: Any) -> dict[str, Any]:
    """The names after an example, which may use those of its module."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^ +```python {re.escape(title)}\n(.*?)^ +```$", text, flags=re.MULTILINE | re.DOTALL)
    names = {**(vars(module) if module else {}), **more}
    source = textwrap.dedent(found)
    exec(source if source.startswith("def ") else f"FOUND = {{{source}}}", names)
    return names


def test_the_reward_tells_its_three_answers_apart() -> None:
    reward = example("rewards_example.py", after_thought=after_thought)["one_line"]
    assert [reward(said, "4") for said in ("4", "<think>2+2</think>4", "4\n4", "<think>4", "")] == [1, 1, 0, 0, 0]


def test_the_chat_format_reads_its_example() -> None:
    function = example("rows_example.py", rows)["from_strings"]
    found = example("format_example.py", formats, from_strings=function)["FOUND"]["strings"]
    row = dict(found.example)
    (fields,) = found.found_in(row)
    turns = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    assert found.to_messages(row, *fields) == turns
    assert found.to_messages({"Dialog": '["2+2?", "4"]', "system": "Add."}, "dialog")[1:] == turns


def test_the_task_has_valid_rows() -> None:
    made = example("tasks_example.py", tasks)["capitals"](0)
    assert [problem_of(row, made.kind) for row in made.rows] == [None]
