"""`nemotron completion`: what a shell needs to complete our lines: models, commands, configs and settings.

eval "$(nemotron completion bash)"                 in ~/.bashrc
eval "$(nemotron completion zsh)"                  in ~/.zshrc
nemotron completion fish > ~/.config/fish/completions/nemotron.fish
"""

import click
from click.shell_completion import get_completion_class

from nemotron_app.recipes import composed, tree
from nemotron_shared.config.compose import leaves
from nemotron_shared.errors import UserError

VARIABLE = "_NEMOTRON_COMPLETE"


@click.command("completion", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """See the head of this module."""
    from nemotron_app.main import nemotron

    found = get_completion_class(shell)
    assert found is not None
    print(found(nemotron, {}, "nemotron", VARIABLE).source())
    return 0


def settings(stage: str, config: str | None, incomplete: str) -> list[str]:
    """The stage's settings that begin so, each with its `=`."""
    try:
        known = leaves(tree(composed(stage, config or "default", [])))
    except UserError:  # a config that is not there, or not whole yet
        return []
    return [f"{key}=" for key, _ in known if key.startswith(incomplete)]
