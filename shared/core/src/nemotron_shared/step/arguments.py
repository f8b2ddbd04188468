"""The command line of every step.

python stages/sft/train.py -c tiny train.train_iters=20 --dry-run
torchrun stages/sft/train.py -c tiny
python stages/sft/data_prep.py -c tiny --sample 100
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from nemotron_shared.config.overrides import Said, require_once, require_unsplit
from nemotron_shared.system.errors import UserError

# Short forms used in commands: `sample=1000` and `force=true`; in the config these keys have a section.
SHORT_KEYS = {"sample": "data_prep.sample", "force": "run.force"}


class Once(click.Option):
    """An option with one value: given twice, it must be the same."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Let the parser collect all values; click itself keeps the last, and says nothing."""
        parser.add_option(obj=self, opts=self.opts, dest=self.name, action="append", nargs=self.nargs)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> Any:
        """See the base class.

        Raises:
            UserError: two values.
        """
        said = opts.get(self.name)
        if not isinstance(said, list):
            return super().consume_value(ctx, opts)
        values = list(dict.fromkeys(map(str, said)))
        if len(values) > 1:
            raise UserError(f"{self.opts[-1]} is given twice, as {values[0]} and {values[1]}", "give it once")
        return super().consume_value(ctx, {**opts, self.name: said[-1]})


def once(command: click.Command) -> click.Command:
    """Let each option of a command, and of its subcommands, that has one value be an `Once`."""
    for option in command.params:
        plain = type(option) is click.Option and not (option.is_flag or option.multiple or option.count)
        if plain:
            option.__class__ = Once
    if isinstance(command, click.Group):
        for own in command.commands.values():
            once(own)
    return command


OPTIONS = (
    click.Option(["-c", "--config"], metavar="NAME|PATH", help="config file; without it, the production recipe"),
    click.Option(
        ["--setting"], nargs=2, multiple=True, hidden=True, help="an override with its origin: ORIGIN KEY=VALUE"
    ),
    click.Option(["--sample"], type=int, metavar="N", help="prepare at most N rows (data_prep.sample=N)"),
    click.Option(["--workers"], type=int, metavar="N", help="processes of data preparation (data_prep.workers=N)"),
    click.Option(
        ["--executor"], type=click.Choice(["local", "ray"]), help="who prepares data (data_prep.executor=...)"
    ),
    click.Option(["--force"], is_flag=True, help="redo the work even where a result exists"),
    click.Option(
        ["--trust-code"], is_flag=True, help="run the Python files of a model that needs them, and of rewards and tasks"
    ),
    click.Option(["-d", "--dry-run"], is_flag=True, help="show what would run, and whether it could"),
    click.Option(
        ["--machine"], type=click.Path(path_type=Path), metavar="FILE", help="with --dry-run: for the machine in FILE"
    ),
    click.Option(["--json"], is_flag=True, help="print results as JSON on stdout"),
)
"""Options of the step scripts and of the `nemotron` command."""
CONFIG_ALONE = click.Option(["--config-alone"], is_flag=True, hidden=True)
"""For `nemotron plan`: a dry run that looks only for inputs the user names."""

IN_PIPELINE = click.Option(["--in-pipeline"], is_flag=True, hidden=True)
"""For a pipeline's dry run: earlier steps would first make, or reuse, this step's inputs."""

COMPOSED = click.Option(["--composed"], type=click.Path(path_type=Path), hidden=True)
"""For `nemotron`, which has composed the config already: the file to read it from."""

REHEARSE = click.Option(["--rehearse"], is_flag=True, hidden=True)
"""Take one training step on the first rows, and keep nothing."""

REHEARSED = click.Option(["--rehearsed"], is_flag=True, hidden=True)
"""For `nemotron finetune`, which has rehearsed the training before it prepared the data."""

HIDDEN = (CONFIG_ALONE, IN_PIPELINE, REHEARSE, COMPOSED, REHEARSED)


@dataclass(frozen=True)
class Arguments:
    """A step's parsed arguments: a config, overrides, and how to run.

    Attributes:
        machine: description of another machine, for a dry run.
        config_alone: the dry run looks only for inputs the user names.
        in_pipeline: the dry run is for a step whose inputs earlier steps would make.
        rehearse: take one step of a training on a little data, to see whether it works.
        rehearsed: that has been done.
        trust_code: Python files of a model, and of rewards and tasks, may run. It has no config key: no file can
            grant that.
        composed: the file with the composed config; `config` and `overrides` are then read from it.
    """

    config: str
    overrides: tuple[str, ...]
    dry_run: bool
    json: bool
    machine: Path | None = None
    trust_code: bool = False
    config_alone: bool = False
    in_pipeline: bool = False
    rehearse: bool = False
    composed: Path | None = None
    rehearsed: bool = False


def parse_arguments(program: str, description: str, argv: Sequence[str] | None) -> Arguments:
    """Parse a step's command line; options may come before or after overrides."""
    overrides = click.Argument(["overrides"], nargs=-1, metavar="[KEY=VALUE]...")
    unwrapped = "\n\n".join(f"\b\n{paragraph}" for paragraph in description.split("\n\n"))
    command = once(click.Command(program, params=[*OPTIONS, *HIDDEN, overrides], help=unwrapped))
    command.context_settings = {"help_option_names": ["-h", "--help"]}
    try:
        values = command.make_context(program, list(sys.argv[1:] if argv is None else argv)).params
    except click.exceptions.Exit as done:  # --help, already printed
        sys.exit(done.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    require_unsplit(values["overrides"])
    overridden = overrides_of(values, values["overrides"])
    asked = values["dry_run"], values["json"], machine_of(values), values["trust_code"]
    hidden = values["config_alone"], values["in_pipeline"], values["rehearse"], values["composed"], values["rehearsed"]
    return Arguments(values["config"] or "default", overridden, *asked, *hidden)


def command_words(arguments: Arguments) -> tuple[str, ...]:
    """The words of a command line that asks for the same."""
    words = ["-c", arguments.config]
    for text in arguments.overrides:
        words += ["--setting", text.origin, text] if isinstance(text, Said) else [text]
    words += ["--dry-run"] if arguments.dry_run else []
    words += ["--machine", str(arguments.machine)] if arguments.machine else []
    words += ["--json"] if arguments.json else []
    words += ["--trust-code"] if arguments.trust_code else []
    return tuple(words)


def machine_of(options: dict[str, Any]) -> Path | None:
    """The machine a dry run is for; None for this one.

    Raises:
        UserError: not a dry run: a real run is always on this machine.
    """
    if options["machine"] is not None and not options["dry_run"]:
        raise UserError("--machine describes another machine, and nothing starts there", "add --dry-run")
    return options["machine"]


def overrides_of(options: dict[str, Any], typed: Sequence[str]) -> tuple[str, ...]:
    """Overrides from other sources, then typed ones with short keys expanded, and those from options.

    Raises:
        UserError: a key is typed twice, with two values.
    """
    overrides: list[str] = [Said(text, origin) for origin, text in options["setting"]]
    for override in typed:
        key, equals, value = override.partition("=")
        overrides.append(f"{SHORT_KEYS.get(key, key)}{equals}{value}")
    for name in ("sample", "workers", "executor"):
        if options[name] is not None:
            overrides.append(f"data_prep.{name}={options[name]}")
    overrides += ["run.force=true"] if options["force"] else []
    require_once(overrides)
    return tuple(overrides)
