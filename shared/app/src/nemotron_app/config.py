"""`nemotron config`: inspect configs and their settings, and translate those of other projects.

nemotron config list                              every config of every stage
nemotron config show sft/tiny optimizer.lr=1e-3   all values, and where each comes from
nemotron config diff sft/local sft/tiny           the settings that differ
nemotron config explain train.micro_batch_size    what a setting means, and its values
nemotron config translate nemotron_automodel_insecure.yaml > mine.yaml
nemotron nano3 sft -c mine.yaml --dry-run

A config is STAGE/NAME or a file. For a file of your own, --stage names its stage.
"""

from pathlib import Path
from typing import Any

import click

from nemotron_app import completion
from nemotron_app.launch import stage_directory
from nemotron_app.recipes import composed, explained, names, recipe, require_valid, title, tree
from nemotron_app.wording import table_lines
from nemotron_shared.config.compose import Composed
from nemotron_shared.config.overrides import leaves, require_once, require_unsplit
from nemotron_shared.config.shown import as_used, on_one_line, with_origins
from nemotron_shared.config.translation import translated
from nemotron_shared.stages import STAGES
from nemotron_shared.system.console import say, tell, tell_json
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.redaction import redact_values

OF_STAGE = click.option("--stage", type=click.Choice([*STAGES]), help="stage of a file outside the stages' folders")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="print JSON")


@click.group("config", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
def command() -> None:
    """See the module docstring."""


@command.command("list")
@click.argument("stage", type=click.Choice([*STAGES]), required=False)
@AS_JSON
def list_(stage: str | None, as_json: bool) -> int:
    """List the configs of STAGE, or of all stages."""
    found = {f"{one}/{name}": title(one, name) for one in ([stage] if stage else STAGES) for name in names(one)}
    if as_json:
        tell_json(found)
    else:
        width = max(map(len, found))
        tell("\n".join(f"{name:<{width}}  {said}" for name, said in found.items()))
    return 0


@command.command("show")
@click.argument("config", metavar="CONFIG", shell_complete=completion.configs)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE ...]", shell_complete=completion.overrides)
@OF_STAGE
@AS_JSON
def show(config: str, overrides: tuple[str, ...], stage: str | None, as_json: bool) -> int:
    """Print all values of CONFIG with these overrides. References are not resolved."""
    one_stage, choice = recipe(config, stage)
    one = composed(one_stage, choice, _only_settings(overrides))
    values = _values(one_stage, one)
    if as_json:
        tell_json({"config": values, "origins": one.origins})
    else:
        tell("\n".join(with_origins(values, one.origins)))
    return 0


@command.command("diff")
@click.argument("first", metavar="CONFIG", shell_complete=completion.configs)
@click.argument("second", metavar="CONFIG", shell_complete=completion.configs)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE ...]", shell_complete=completion.overrides)
@OF_STAGE
@AS_JSON
def diff(first: str, second: str, overrides: tuple[str, ...], stage: str | None, as_json: bool) -> int:
    """Print the settings in which two configs differ. Overrides apply to the second one."""
    (one_stage, one), (other_stage, other) = recipe(first, stage), recipe(second, stage)
    before = dict(leaves(_values(one_stage, composed(one_stage, one, []))))
    after = dict(leaves(_values(other_stage, composed(other_stage, other, _only_settings(overrides)))))
    changed = {
        key: (before.get(key, "(not there)"), after.get(key, "(not there)"))
        for key in [*before, *(key for key in after if key not in before)]
        if before.get(key, ...) != after.get(key, ...)
    }
    if as_json:
        tell_json({key: {"first": one, "second": other} for key, (one, other) in changed.items()})
    else:
        rows = [(key, on_one_line(one), on_one_line(other)) for key, (one, other) in changed.items()]
        tell("\n".join(table_lines(("", first, second), rows)) if rows else "they are the same")
    return 0


@command.command("explain")
@click.argument("key", metavar="KEY|SECTION", shell_complete=completion.explained)
@click.option("--stage", type=click.Choice([*STAGES]), help="of this stage alone")
@AS_JSON
def explain(key: str, stage: str | None, as_json: bool) -> int:
    """Explain a setting, with its default and its values in `local` and `tiny`."""
    found = explained(key, [stage] if stage else [*STAGES])
    if as_json:
        tell_json(found)
        return 0
    for one in found:
        tell(f"{one['key']}\n  {one['meaning']}")
        for said, values in one["values"].items():
            tell(f"  {said:<20} {', '.join(f'{name} {on_one_line(value)}' for name, value in values.items())}")
    return 0


@command.command("translate")
@click.argument("file", type=click.Path(path_type=Path))
def translate(file: Path) -> int:
    """Print FILE, a config of Automodel, NeMo-RL, Megatron-Bridge or another project, with our keys."""
    if not file.is_file():
        raise UserError(f"file {file} not found", "give the path of a YAML file")
    found = translated(file, [stage_directory(name) / "config" for name in STAGES])
    if found is None:
        raise UserError(f"{file}: not a config of a known project", "use a config with our own keys directly: -c FILE")
    for note in found.notes:
        say(note)
    tell(found.text, end="")
    return 0


def _values(stage: str, config: Composed) -> dict[str, Any]:
    """The values of a config that are shown.

    Raises:
        UserError: invalid value.
    """
    return redact_values(as_used(tree(config), require_valid(stage, config)))


def _only_settings(words: tuple[str, ...]) -> list[str]:
    require_unsplit(words)
    if stray := next((word for word in words if "=" not in word and not word.startswith("~")), None):
        raise UserError(f"unexpected argument '{stray}' after the config", "settings are written key=value")
    require_once(words)
    return list(words)
