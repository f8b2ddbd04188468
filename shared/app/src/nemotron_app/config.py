"""`nemotron config`: configs of other projects, said in ours.

nemotron config translate nemotron_automodel_insecure.yaml > mine.yaml
nemotron nano3 sft -c mine.yaml --dry-run
"""

from pathlib import Path

import click

from nemotron_shared.config.compose import translated
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.console import say


@click.group("config", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
def command() -> None:
    """See the head of this module."""


@command.command("translate")
@click.argument("file", type=click.Path(path_type=Path))
def translate(file: Path) -> int:
    """Print FILE, a config of Automodel, NeMo-RL, Megatron-Bridge or another project, with our keys."""
    if not file.is_file():
        raise UserError(f"there is no file {file}", "give the path of a YAML file")
    found = translated(file)
    if found is None:
        raise UserError(f"{file}: no config of a project that is known here", "one with our own keys is used as it is")
    for note in found.notes:
        say(note)
    print(found.text, end="")
    return 0
