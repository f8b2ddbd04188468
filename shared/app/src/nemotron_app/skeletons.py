"""`nemotron new reward|task|format|engine`: something of your own to begin with, which works as it is.

nemotron new reward brief        brief.py: the reward, and three answers that test it: python brief.py
nemotron new task capitals       capitals.py: rows of a task
nemotron new format dialogs      dialogs/: a package whose function reads rows of your form, and a file of such rows
nemotron new engine mine sft     mine/: a package with an engine of the stage, which copies its model to begin with
"""

import keyword
import re
import sys
from collections.abc import Container, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from nemotron_data.chat.formats import CHAT_FORMATS
from nemotron_shared.system.atomic import output_file, write_text
from nemotron_shared.system.errors import UserError

REWARD = '''"""A reward: a number for an answer, from 0 to 1. docs/rewards.md says what a function may ask for.

    nemotron super3 rl -c tiny "rewards=[{{path: {name}.py:{name}}}]" --trust-code
"""


def {name}(completion, expected):
    """1 for the expected answer as the last word; a tenth for another answer of one word, as a first step."""
    words = completion.rpartition("</think>")[2].split()
    if words[-1:] == [expected]:
        return 1.0
    return 0.1 if len(words) == 1 else 0.0


if __name__ == "__main__":  # one that is right, one that is wrong, and two that try to cheat
    assert {name}("<think>3+4=7</think>The answer is 7", "7") == 1
    assert {name}("8", "7") == 0.1
    assert {name}("<think>7 7 7</think>", "7") == 0
    assert {name}("5 6 7 8", "7") == 0
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
FORMAT_PROJECT = """# A chat format: data_prep.format={name}. docs/data.md says more about chat formats.
[project]
name = "{name}"
version = "0.1.0"

[project.entry-points."nemotron.chat_formats"]
{name} = "{name}:{name}"
"""
FORMAT = '''"""Rows such as {{"dialog": ["2+2?", "4"], "thoughts": "two more"}}, as messages."""


def {name}(row):
    """Texts in turn, of which the user has the first; `thoughts` are those of the last answer. An error is the row's:
    it is counted and listed with the reason.
    """
    turns = [{{"role": ("user", "assistant")[place % 2], "content": text}} for place, text in enumerate(row["dialog"])]
    if row.get("thoughts"):
        turns[-1]["reasoning_content"] = row["thoughts"]
    return turns


if __name__ == "__main__":
    asked, said = {name}({{"dialog": ["2+2?", "4"], "thoughts": "two more"}})
    assert asked == {{"role": "user", "content": "2+2?"}}
    assert said == {{"role": "assistant", "content": "4", "reasoning_content": "two more"}}
    print("{name}: the row becomes the messages that it should become")
'''
FORMAT_ROWS = '{{"dialog": ["2+2?", "4"], "thoughts": "two more"}}\n{{"dialog": ["3+2?", "5"]}}\n'
ENGINE_PROJECT = """# An engine of the stage {stage}: engine={name}. CONTRIBUTING.md says more about engines.
[project]
name = "{name}"
version = "0.1.0"

[project.entry-points."nemotron.engines.{stage}"]
{name} = "{name}:{title}"

[project.entry-points."nemotron.config"]
{name} = "{name}.config"

[tool.setuptools]
packages = ["{name}", "{name}.config"]
package-data = {{ "*" = ["**/*.yaml"] }}
"""
ENGINE = '''"""What a start and its dry run know of the engine. Heavy libraries are imported by {name}/work.py alone."""

from collections.abc import Iterator
from typing import Literal

from nemotron_shared.config.schema import EngineSection
from nemotron_shared.engine.engine import Engine, Inputs
from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system.errors import Finding, problem
from stages.{stage}.schema import {config}


class {title}Settings(EngineSection):
    """The block of values of engine={name}; {name}/config/engine/{name}.yaml has one for each."""

    name: Literal["{name}"]
    note: str
    """Text that is written beside the model."""


class {title}(Engine[{config}[{title}Settings]]):
    """Copies the model that it is given."""

    settings = {title}Settings

    def check(self, config: {config}[{title}Settings], inputs: Inputs, machine: Machine) -> Iterator[Finding]:
        """Everything that keeps a config from running is said before any work."""
        if inputs["model"] is None:
            yield problem("engine={name} needs a model to begin with", "name one: run.model=FOLDER", "run.model")

    def run(self, task: Task[{config}[{title}Settings]]) -> Outcome:
        """Do the work."""
        from {name}.work import train

        return train(task)
'''
ENGINE_WORK = '''"""The work of the engine. It trains nothing yet: put your training in the place of the copy."""

import shutil
from typing import Any

from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.system.atomic import write_json

OF_THE_STORE = shutil.ignore_patterns("manifest.json", "metrics.jsonl")


def train(task: Task[Any]) -> Outcome:
    """Fill the folder that is published."""
    model, data, steps = task.input("model"), task.input("data"), task.config.train.train_iters
    output = task.run.fresh_output()
    shutil.copytree(model.path, output, dirs_exist_ok=True, ignore=OF_THE_STORE)
    write_json(output / "note.json", {{"note": task.config.engine.note, "data": data.reference}})
    task.run.metrics.append(steps, seconds=0.0)
    task.run.say(f"copied {{model.reference}}; a training would be {{steps}} steps")
    return Outcome(output, {{"step": steps}})
'''
ENGINE_VALUES = """# Copy the model, and train nothing yet:
#   nemotron super3 {stage} -c tiny engine={name}
name: {name}
note: hello
"""
CONFIGS = {"pretrain": "PretrainConfig", "sft": "SFTConfig", "rl": "RLConfig"}
"""Stages that make models, and the class of their config."""
MODEL_OF = {"pretrain": "super3-pretrain-model", "sft": "super3-pretrain-model", "rl": "super3-sft-model"}
INSTALLED = "uv run --with-editable ./{name} nemotron super3"


@dataclass(frozen=True)
class Skeleton:
    """Files to begin with, by their path, and the commands that use them."""

    files: Mapping[str, str]
    commands: tuple[str, ...]


SKELETONS: Mapping[str, Skeleton] = {
    "reward": Skeleton(
        {"{name}.py": REWARD},
        ("python {name}.py", 'nemotron super3 rl -c tiny "rewards=[{{path: {name}.py:{name}}}]" --trust-code'),
    ),
    "task": Skeleton(
        {"{name}.py": TASK},
        (
            "python {name}.py",
            'nemotron super3 data prep eval -c tiny "data_prep.tasks=[{{path: {name}.py:{name}}}]" --trust-code',
            "nemotron super3 eval -c tiny -t {name}",
        ),
    ),
    "format": Skeleton(
        {"{name}/pyproject.toml": FORMAT_PROJECT, "{name}/{name}.py": FORMAT, "{name}/rows.jsonl": FORMAT_ROWS},
        (
            "python {name}/{name}.py",
            f"{INSTALLED} data prep sft -c tiny data_prep.source={{name}}/rows.jsonl data_prep.format={{name}}",
            "nemotron data inspect sft-data",
        ),
    ),
    "engine": Skeleton(
        {
            "{name}/pyproject.toml": ENGINE_PROJECT,
            "{name}/{name}/__init__.py": ENGINE,
            "{name}/{name}/work.py": ENGINE_WORK,
            "{name}/{name}/config/__init__.py": '"""Values of the engine: `engine/{name}.yaml`."""\n',
            "{name}/{name}/config/engine/{name}.yaml": ENGINE_VALUES,
        },
        (
            f"{INSTALLED} {{stage}} -c tiny engine={{name}} run.name={{name}} run.model={{model}} --dry-run",
            f"{INSTALLED} {{stage}} -c tiny engine={{name}} run.name={{name}} run.model={{model}}",
        ),
    ),
}


PACKAGES = ("format", "engine")
"""Kinds that are installed."""


def _taken(kind: str, stage: str | None) -> Container[str]:
    """Names of what there is of a kind."""
    if kind == "format":
        return CHAT_FORMATS
    places = {"reward": "stages.rl.rewards:REWARDS", "task": "stages.eval.tasks:TASKS"}
    place = places.get(kind) or (f"stages.{stage}.engines:ENGINES" if kind == "engine" else None)
    if place is None:
        return ()
    module, _, table = place.partition(":")
    return vars(import_module(module))[table].places()


def write_skeleton(kind: str, name: str, stage: str | None = None, *, force: bool) -> list[str]:
    """Write the files, and return what to say about them.

    Args:
        stage: of an engine; the stages that make models have skeletons.

    Raises:
        UserError: the name is none of a Python function, or that of a module or of another such part; a file is there;
            or the stage has none.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name in sys.stdlib_module_names:
        remedy = f"take letters, digits and '_', such as my_{kind}; no word of Python, and no module of it"
        raise UserError(f"'{name}' cannot name a function and its file", remedy)
    if kind in PACKAGES and not re.fullmatch("[a-z][a-z0-9_]*", name):
        raise UserError(f"'{name}' cannot name a package and its results", "take small letters, digits and '_'")
    if kind == "engine" and stage not in CONFIGS:
        what = f"'{stage}' is not a stage that makes a model" if stage else "an engine belongs to a stage"
        raise UserError(what, f"say: nemotron new engine {name} {'|'.join(CONFIGS)}")
    if name in _taken(kind, stage):
        raise UserError(f"there is already the {kind} '{name}'", f"give another name, such as my_{name}")
    skeleton = SKELETONS[kind]
    words = {"name": name}
    if stage is not None:
        title = "".join(part.capitalize() for part in name.split("_"))
        words |= {"stage": stage, "title": title, "config": CONFIGS[stage], "model": MODEL_OF[stage]}
    files = {Path(path.format(**words)): text.format(**words) for path, text in skeleton.files.items()}
    if kind in PACKAGES and not next(iter(files)).exists() and find_spec(name) is not None:
        raise UserError(f"'{name}' would hide the installed package of that name", f"give another name: my_{name}")
    if not force and (there := next((file for file in files if file.exists()), None)):
        raise UserError(f"{there} already exists", "give another name, or --force to replace it")
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(output_file(file), text)
    said = [f"wrote {file}" for file in files]
    return [*said, *(f"  {command.format(**words)}" for command in skeleton.commands)]
