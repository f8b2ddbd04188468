"""`nemotron completion`: shell completion of models, commands, configs, settings and artifacts.

eval "$(nemotron completion bash)"                 in ~/.bashrc
eval "$(nemotron completion zsh)"                  in ~/.zshrc
nemotron completion fish > ~/.config/fish/completions/nemotron.fish

Shells complete the command `nemotron`, but not `uv run nemotron`, whose first word is uv: activate the environment
first, with `source .venv/bin/activate`.
"""

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem, get_completion_class

from nemotron_shared.stages import STAGES
from nemotron_shared.system.errors import UserError

# Each completer is a `shell_complete` callback of click. Imports are local, so they cost nothing until a shell asks:
# the commands are declared on every start.

ARTIFACTS = {"model": "model", "base": "model", "data": "data"}
FILES = ("source", "home", "path", "file", "folder", "train", "valid", "test", "questions", "architecture")
"""Last parts of the keys whose values are artifacts or files."""


def beginning(incomplete: str, known: Iterable[str]) -> list[CompletionItem]:
    """The `known` words that start with `incomplete`; otherwise files, which the shell completes."""
    found = [CompletionItem(word) for word in known if word.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def configs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """`STAGE/NAME`."""
    from nemotron_app.recipes import names

    return beginning(incomplete, [f"{stage}/{name}" for stage in STAGES for name in names(stage)])


def overrides(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str] | list[CompletionItem]:
    """Settings of the config earlier on the line, or of the one given with --from."""
    from nemotron_app.recipes import recipes

    if "=" in incomplete:
        return values(incomplete, list(STAGES))
    asked = ctx.params.get("second") or ctx.params.get("config") or ctx.params.get("base")
    if asked is None:
        return []
    try:
        found = recipes(asked, ctx.params.get("stage"))
    except UserError:  # the config does not exist yet, or is incomplete
        return []
    return list(dict.fromkeys(key for stage, name in found for key in settings(stage, name, incomplete)))


def settings(stage: str, config: str | None, incomplete: str, prefix: str = "") -> list[str]:
    """The stage's settings that start with `incomplete`, each followed by `=`."""
    from nemotron_app.recipes import composed, tree
    from nemotron_shared.config.overrides import leaves

    try:
        known = leaves(tree(composed(stage, config or "default", [])))
    except UserError:
        return []
    return [f"{prefix}{key}=" for key, _ in known if f"{prefix}{key}".startswith(incomplete)]


def values(incomplete: str, stages: Iterable[str]) -> list[CompletionItem]:
    """Values for `KEY=`: engines, artifacts, files. Each includes its key, as shells expect."""
    from nemotron_app.launch import stage_directory
    from nemotron_shared.config.compose import shared_groups

    key, _, begun = incomplete.partition("=")
    if key.lstrip("+") == "engine":
        folders = [*(stage_directory(stage) / "config" for stage in stages), *shared_groups()]
        known = sorted({file.stem for folder in folders for file in (folder / "engine").glob("*.yaml")})
        return [CompletionItem(f"{key}={name}") for name in known if name.startswith(begun)]
    last = key.rpartition(".")[2]
    if last in ARTIFACTS:
        names = [name for name in _named(f"-{ARTIFACTS[last]}", None) if name.startswith(begun)]
        return [CompletionItem(f"{key}={name}") for name in names] or [CompletionItem(incomplete, type="file")]
    return [CompletionItem(incomplete, type="file")] if last in FILES else []


def of_pipeline(config: str | None, incomplete: str) -> list[str]:
    """Settings of all stages, and `STAGE.SETTING` for single stages."""
    found = [key for stage in STAGES for key in settings(stage, config, incomplete)]
    if "." in incomplete and incomplete.partition(".")[0] in STAGES:
        stage = incomplete.partition(".")[0]
        found += settings(stage, config, incomplete, prefix=f"{stage}.")
    else:
        found += [f"{stage}." for stage in STAGES if stage.startswith(incomplete)]
    return list(dict.fromkeys(found))


def explained(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Settings and sections, of --stage or of all stages."""
    stages = [ctx.params["stage"]] if ctx.params.get("stage") else [*STAGES]
    keys = [key.removesuffix("=") for stage in stages for key in settings(stage, None, incomplete)]
    sections = {key.partition(".")[0] for key in keys} if "." not in incomplete else set()
    return [*sorted(sections), *dict.fromkeys(key for key in keys if key not in sections)]


def artifacts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of artifacts in the store."""
    return beginning(incomplete, _named("", _home(ctx)))


def models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Models in the store, by full and short name."""
    return beginning(incomplete, _named("-model", _home(ctx)))


def data(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Prepared data in the store, by full and short name."""
    return beginning(incomplete, _named("-data", _home(ctx)))


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files, completed by the shell."""
    return [CompletionItem(incomplete, type="file")]


def _home(ctx: click.Context) -> str | None:
    above = ctx.parent.params if ctx.parent else {}
    return ctx.params.get("home") or above.get("home")


def _named(end: str, home: str | None) -> list[str]:
    """Names in the store that end with `end`, preceded by their short names if `end` is given."""
    from nemotron_shared.artifacts.names import SHORT_NAMES
    from nemotron_shared.artifacts.store import Store
    from nemotron_shared.stages import DEFAULT_FAMILY

    known = [name for name in Store.open(home).names() if name.endswith(end)]
    shortest = {kind: name for name, kind in reversed(SHORT_NAMES.items())}
    short = [name for kind, name in shortest.items() if end and f"{DEFAULT_FAMILY}-{kind}" in known]
    return [*sorted(short), *known]


VARIABLE = "_NEMOTRON_COMPLETE"


@click.command("completion", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """See the module docstring."""
    nemotron = click.get_current_context().find_root().command
    script = get_completion_class(shell)
    assert script is not None, "click knows the shells above"
    print(script(nemotron, {}, "nemotron", VARIABLE).source())
    return 0
