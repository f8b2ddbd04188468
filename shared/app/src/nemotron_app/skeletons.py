"""`nemotron new reward NAME` and `nemotron new task NAME`: a file of your own to begin with, which works as it is.

nemotron new reward brief        brief.py: the reward, and three answers that test it: python brief.py
nemotron new task capitals       capitals.py: rows of a task
"""

import keyword
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nemotron_shared.system.atomic import output_file, write_text
from nemotron_shared.system.errors import UserError

REWARD = '''"""A reward: a number for an answer, from 0 to 1. docs/rewards.md says what a function may ask for.

    nemotron super3 rl -c tiny "rewards=[{{path: {name}.py:{name}}}]" --trust-code
"""


def {name}(completion, expected):
    """1 for the expected answer as the last word; half of it for an answer that has it elsewhere."""
    answer = completion.rpartition("</think>")[2].strip()
    if answer.split()[-1:] == [expected]:
        return 1.0
    return 0.5 if expected in answer.split() else 0.0


if __name__ == "__main__":  # one that is right, one that is wrong, and one that tries to cheat
    assert {name}("<think>3+4=7</think>The answer is 7", "7") == 1
    assert {name}("8", "7") == 0
    assert {name}("<think>7 7 7</think>", "7") == 0
    print("{name}: all answers have the rewards that they should have")
'''
TASK = '''"""A task of an evaluation: rows with questions. docs/rewards.md lists the fields that a row may have.

    nemotron super3 data prep eval -c tiny "data_prep.tasks=[{{path: {name}.py:{name}}}]" --trust-code
    nemotron super3 eval -c tiny -t {name}
"""

SUMS = ((1, 2), (3, 4), (5, 6), (7, 8))


def {name}():
    """Questions with an expected answer; rows with `choices` and `answer`, or with `text` alone, are other kinds."""
    return [{{"question": f"What is {{left}}+{{right}}?", "expected": str(left + right)}} for left, right in SUMS]


if __name__ == "__main__":
    for row in {name}():
        print(row)
'''


@dataclass(frozen=True)
class Skeleton:
    """A file to begin with, and the commands that use it."""

    text: str
    commands: tuple[str, ...]


SKELETONS: Mapping[str, Skeleton] = {
    "reward": Skeleton(
        REWARD, ("python {name}.py", 'nemotron super3 rl -c tiny "rewards=[{{path: {name}.py:{name}}}]" --trust-code')
    ),
    "task": Skeleton(
        TASK,
        (
            "python {name}.py",
            'nemotron super3 data prep eval -c tiny "data_prep.tasks=[{{path: {name}.py:{name}}}]" --trust-code',
            "nemotron super3 eval -c tiny -t {name}",
        ),
    ),
}


def write_skeleton(kind: str, name: str, *, force: bool) -> list[str]:
    """Write the file, and return what to say about it.

    Raises:
        UserError: the name is none of a Python function, is that of a module of Python, or the file is there.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name in sys.stdlib_module_names:
        remedy = f"take letters, digits and '_', such as my_{kind}; no word of Python, and no module of it"
        raise UserError(f"'{name}' cannot name a function and its file", remedy)
    file = Path(f"{name}.py")
    if file.exists() and not force:
        raise UserError(f"{file} already exists", "give another name, or --force to replace it")
    skeleton = SKELETONS[kind]
    write_text(output_file(file), skeleton.text.format(name=name))
    return [f"wrote {file}", *(f"  {command.format(name=name)}" for command in skeleton.commands)]
