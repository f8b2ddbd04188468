"""The commands that errors advise are checked where the errors are raised: by every test that provokes one.

    error: run.model: there is no artifact 'super3-pretrain-model'
      make it: nemotron super3 pretrain -c tiny

The remedy's command must be one that `nemotron` understands: its command, options and arguments, model, stage and
config must exist. If one does not, `UserError` itself fails, and with it the test. tests/test_remedies.py runs the
commands; this only reads them.
"""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

from nemotron_shared.system.errors import Finding, Level, UserError

COMMAND = re.compile(
    r"(?<![\w./-])(?:(?:uv run )?nemotron(?= [a-z{-])|uv (?=(?:sync|pip|run|python|lock|add)\b)|torchrun (?=-|\w+/)"
    r"|python3? (?=-|\w+/)|(?<!uv )(?<!-m )pip (?=install))"
)
END = re.compile(r"[;`(\n]|, |: | and set | \(")


def commands(text: str) -> Iterator[list[str]]:
    """The commands in a text, word by word."""
    for match in COMMAND.finditer(text):
        rest = text[match.start() :]
        end = END.search(rest)
        yield shlex.split(rest[: end.start()] if end else rest)


def problem_of(words: tuple[str, ...]) -> str | None:
    """Why `nemotron` would refuse these words before it looks at any file; None: it understands them."""
    import click

    from nemotron_app.main import nemotron

    command: Any = nemotron
    context: click.Context | None = None
    name: str | None = "nemotron"
    rest = list(words)
    try:
        while True:
            context = command.make_context(name, rest, parent=context)
            if not isinstance(command, click.Group):
                break
            if not (rest := [*context._protected_args, *context.args]):
                return None  # a group that does something by itself
            name, command, rest = command.resolve_command(context, rest)
    except (click.exceptions.Exit, click.MissingParameter):  # --help, or a command that is only named
        return None
    except (click.UsageError, UserError) as error:
        return str(error)
    return problem_of_step(context.params) if command.name == "step" else None


def problem_of_step(options: dict[str, Any]) -> str | None:
    """The same for the command of a step, all of whose words click takes: its model, its stage and its config."""
    from nemotron_app.recipes import names
    from nemotron_shared.families import families
    from nemotron_shared.stages import STAGES

    words = [word for word in options["words"] if "=" not in word]
    if not words:
        return None
    family, *command = words
    if family not in families():
        return f"there is no model '{family}'"
    if command not in [["pipeline"], *([stage] for stage in STAGES), *(["data", "prep", stage] for stage in STAGES)]:
        return f"'{' '.join(command)}' is not for a model"
    config, stage = options["config"], command[-1]
    if stage in STAGES and config and not re.search(r"[/.]|^[A-Z]+$", config) and config not in names(stage):
        return f"{stage} has no config '{config}'"
    return None


@cache
def require_understood(words: tuple[str, ...]) -> None:
    """Raise an `AssertionError` for a command that does not exist."""
    problem = problem_of(words)
    assert problem is None, f"an error advises a command that does not exist: nemotron {shlex.join(words)}: {problem}"


def install() -> None:
    """Check the remedy of each finding of this process and of its forks, where the command is installed."""
    if find_spec("nemotron_app") is None:  # a member of the workspace by itself
        return
    original = Finding.__init__

    def init(
        self: Finding, level: Level, message: str, remedy: str | None = None, key: str | None = None,
        pending: bool = False,
    ) -> None:  # fmt: skip
        original(self, level, message, remedy, key, pending)
        for words in commands(remedy or ""):
            words = words[2:] if words[:2] == ["uv", "run"] else words
            if words[0] == "nemotron":
                require_understood(tuple(words[1:]))

    Finding.__init__ = init  # type: ignore[method-assign]
