"""`nemotron completion`: shell completion of models, commands, configs, settings and artifacts.

eval "$(nemotron completion bash)"                 in ~/.bashrc
eval "$(nemotron completion zsh)"                  in ~/.zshrc
nemotron completion fish > ~/.config/fish/completions/nemotron.fish

Shells complete the command `nemotron`, but not `uv run nemotron`, whose first word is uv: activate the environment
first, with `source .venv/bin/activate`.
"""

import os
from typing import ClassVar

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    ZshComplete,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

VARIABLE = "_NEMOTRON_COMPLETE"
IF_PLAIN, IF_FOUND = 'if [[ "$descr" == "_" ]]; then', 'if [ -n "$completions" ]; then'
"""Lines of click's zsh script that we replace."""


class Bash(BashComplete):
    """No space after `key=`. Parses the line itself, because bash splits words at each `=`."""

    source_template: ClassVar[str] = BashComplete.source_template.replace(
        "COMPREPLY+=($value)", "COMPREPLY+=($value)\n            [[ $value != *[=.] ]] || compopt -o nospace"
    ).replace('COMP_WORDS="${COMP_WORDS[*]}"', 'COMP_WORDS="${COMP_LINE:0:$COMP_POINT}"')

    def format_completion(self, item: CompletionItem) -> str:
        """Return only the value of `key=value`: bash treats the text after `=` as a separate word."""
        _, equals, value = item.value.partition("=")
        return f"{item.type},{value if equals and value else item.value}"

    def get_completion_args(self) -> tuple[list[str], str]:
        """See the base class."""
        line = os.environ["COMP_WORDS"]
        words = split_arg_string(line)
        while words and "=" in words[0]:  # an environment variable before the command
            words.pop(0)
        incomplete = words.pop() if words and not line[-1].isspace() else ""
        return words[1:], incomplete


class Zsh(ZshComplete):
    """No space after `key=`, and file completion after it."""

    source_template: ClassVar[str] = (
        ZshComplete.source_template.replace("local -a completions\n", "local -a completions open\n")
        .replace(IF_PLAIN, f'if [[ "$key" == *[=.] ]]; then\n                open+=("$key")\n            el{IF_PLAIN}')
        .replace("_path_files -f", "compset -P '*='\n            _path_files -f")
        .replace(IF_FOUND, f'if [ -n "$open" ]; then\n        compadd -U -S "" -a open\n    fi\n\n    {IF_FOUND}')
    )


def answer_in_our_way() -> None:
    """Register these classes with click. Fish needs no class, since it adds no space after `=`."""
    add_completion_class(Bash)
    add_completion_class(Zsh)


@click.command("completion", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """See the module docstring."""
    from nemotron_app.main import nemotron

    answer_in_our_way()
    found = get_completion_class(shell)
    assert found is not None
    print(found(nemotron, {}, "nemotron", VARIABLE).source())
    return 0
