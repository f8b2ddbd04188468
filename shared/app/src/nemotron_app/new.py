"""`nemotron new`: create a config of your own, or a reward, task, chat format, engine or environment to begin with.

nemotron new mine --from sft/local                       mine.yaml, with the settings that people change first
nemotron new mine --from sft/super3_lora train.train_iters=500
nemotron super3 sft -c mine.yaml --dry-run
nemotron new reward brief                                brief.py: a reward to begin with, which tests itself
nemotron new task capitals                               capitals.py: a task of an evaluation
nemotron new format dialogs                              dialogs/: a package that reads rows of your own form
nemotron new engine mine sft                             mine/: a package with an engine of a stage
nemotron new environment mine                            environments/mine: nemotron env new --help

The file of a config names its base config and contains only what differs. Settings that you may want to change are
included as comments, with their meaning and current value.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from nemotron_app import completion
from nemotron_app.recipes import composed, meaning_of, recipe, require_valid, tree
from nemotron_app.skeletons import SKELETONS, write_skeleton
from nemotron_shared.config.overrides import leaves, nested, override_key, require_once, require_unsplit
from nemotron_shared.config.shown import on_one_line
from nemotron_shared.stages import DEFAULT_FAMILY
from nemotron_shared.system.atomic import output_file, write_text
from nemotron_shared.system.console import tell
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.process import as_typed

OFFERED = (
    "data_prep.source", "data_prep.tokenizer.model", "run.model", "train.train_iters", "train.global_batch_size",
    "train.micro_batch_size", "grpo.num_prompts_per_step", "grpo.num_generations_per_prompt", "grpo.max_new_tokens",
    "optimizer.lr", "checkpoint.save_interval", "evaluation.tasks",
)  # fmt: skip
WIDTH = 110


@click.command("new", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
@click.argument("name", metavar="NAME")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE ...]", shell_complete=completion.overrides)
@click.option(
    "--from",
    "base",
    metavar="STAGE/CONFIG",
    help="what a config begins with",
    shell_complete=completion.configs,
)
@click.option("--force", is_flag=True, help="replace a file of this name")
def command(name: str, overrides: tuple[str, ...], base: str | None, force: bool) -> int:
    """See the module docstring."""
    if base is None:
        if name not in SKELETONS or not 1 <= len(overrides) <= (2 if name == "engine" else 1):
            kinds = "|".join(kind for kind in (*SKELETONS, "environment") if kind != "engine")
            others = f"nemotron new {kinds} NAME; or nemotron new engine NAME STAGE"
            raise UserError(
                "a config begins with another one", f"say: nemotron new {name} --from sft/local; or {others}"
            )
        tell(as_typed("\n".join(write_skeleton(name, *overrides, force=force))))
        return 0
    file = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    if not re.fullmatch(r"\w[\w.-]*", file.stem) or name.endswith("/"):
        raise UserError(
            f"'{name}' is not a valid config name", "use letters, digits, '_', '-', '.'; begin with a letter"
        )
    place = output_file(file)
    if file.exists() and not force:
        raise UserError(f"{file} already exists", "give another name, or --force to replace it")
    require_unsplit(overrides)
    if stray := next((word for word in overrides if "=" not in word or word.startswith("~")), None):
        raise UserError(f"'{stray}' cannot be written into a config", "give settings as key=value")
    require_once(overrides)
    stage, choice = recipe(base)
    if Path(choice).suffix in {".yaml", ".yml"}:
        choice = str(Path(choice).resolve())
    whole = composed(stage, choice, overrides)
    require_valid(stage, whole)
    if any(file.stem == used.stem and used.parent.name == "config" for used in whole.files):
        what = f"{file} would begin with itself: '{file.stem}' is also a config that {base} is made of"
        raise UserError(what, f"give another name: nemotron new my_{file.stem} --from {base}")
    family = tree(whole)["run"]
    assert isinstance(family, dict)
    write_text(place, "\n".join(_lines(file, stage, choice, str(family["family"]), overrides, tree(whole))) + "\n")
    model = family["family"] or DEFAULT_FAMILY
    prepare = "" if stage == "eval" else f"  nemotron {model} data prep {stage} -c {file}\n"
    trains = f"  nemotron {model} {stage} -c {file}"
    tell(as_typed(f"wrote {file}\n{trains} --dry-run\n{prepare}{trains}"))
    return 0


def _lines(file: Path, stage: str, choice: str, family: str, overrides: Sequence[str], values: Any) -> Iterator[str]:
    yield f"# {stage}: {choice}, and what differs."
    yield f"#   nemotron {family} {stage} -c {file}"
    yield "defaults:"
    yield f"  - {choice}"
    flat, said = dict(leaves(values)), dict.fromkeys(map(override_key, overrides))
    groups = [word.lstrip("+") for word in overrides if "." not in override_key(word)]
    yield from (f"  - override {group.replace('=', ': ', 1)}" for group in groups)
    yield "  - _self_"
    changed = {
        key: flat[key] for key in flat if any(key == one or key.startswith(f"{one}.") for one in said if "." in one)
    }
    offered = [key for key in OFFERED if key in flat and key not in changed]
    for section in dict.fromkeys(key.partition(".")[0] for key in [*changed, *offered]):
        own = {key: value for key, value in changed.items() if key.partition(".")[0] == section}
        yield ""
        yield f"{section}:" if own else f"# {section}:"
        if own:
            text = yaml.safe_dump(nested(own)[section], sort_keys=False, allow_unicode=True).rstrip()
            yield from textwrap.indent(text, "  ").splitlines()
        for key in (one for one in offered if one.partition(".")[0] == section):
            yield from textwrap.wrap(meaning_of(key, stage), WIDTH, initial_indent="  # ", subsequent_indent="  # ")
            _, name, *below = key.split(".")
            yield f"  # {name}: {on_one_line({below[0]: flat[key]} if below else flat[key])}"
