"""`nemotron doctor`: whether a machine or a cluster is ready, before anything runs there.

nemotron doctor                                 this machine: programs, disk, tokens, packages, GPUs
nemotron doctor YOUR-CLUSTER                    a profile of env.toml: its paths, its Slurm, and each of its nodes
nemotron doctor YOUR-CLUSTER --for super49b sft     and whether it has what a recipe needs
nemotron doctor --for nano3 sft -c nano3_lora_automodel     an engine's packages, and whether they can be imported

Each line is PASS, WARN, FAIL or SKIP (not looked at, and why). The exit code is 1 where something FAILs.
"""

import json
import sys
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import PurePosixPath

import click

from nemotron_app import recipe_needs
from nemotron_app.plain import print_json
from nemotron_app.recipe_needs import RECIPE, Recipe, read_recipe
from nemotron_app.store_options import Look, store_options
from nemotron_cluster.doctor import machine, nodes, packages, profile, scheduler
from nemotron_cluster.doctor.report import Check, Group, clean, summary, text_lines
from nemotron_cluster.folder import jobs_folder
from nemotron_cluster.profiles.find import load_profile
from nemotron_cluster.profiles.schema import Slurm
from nemotron_cluster.transport import transport_of
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.console import say
from nemotron_shared.runtime.environments import environment_of

PACKAGES = Group("packages of this machine")


@dataclass(frozen=True)
class Asked:
    """What the command line asks for."""

    look: Look
    profile: str | None
    stage: tuple[str, str] | None
    config: str | None
    overrides: tuple[str, ...]
    nodes: bool
    wait: int
    online: bool


@click.command("doctor", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
@click.argument("words", metavar="[PROFILE] [KEY=VALUE]...", nargs=-1)
@click.option("--for", "stage", nargs=2, metavar="FAMILY STAGE", help="a recipe: what it needs is looked for")
@click.option("-c", "--config", metavar="NAME|PATH", help="the recipe's config; without it, the family's own")
@click.option("--nodes/--no-nodes", default=True, show_default=True, help="start a short srun on the profile's nodes")
@click.option("--wait", type=click.IntRange(min=1), default=120, show_default=True, metavar="S", help="for free nodes")
@click.option("--online", is_flag=True, help="ask the hub whether it knows the token")
@store_options
def command(
    look: Look,
    words: tuple[str, ...],
    stage: tuple[str, str] | None,
    config: str | None,
    nodes: bool,
    wait: int,
    online: bool,
) -> int:
    """See the head of this module."""
    overrides = tuple(word for word in words if "=" in word or word.startswith(("~", "+")))
    names = [word for word in words if word not in overrides]
    if len(names) > 1:
        raise UserError(
            f"'{names[1]}' after the profile '{names[0]}'", "say one profile; a recipe is --for FAMILY STAGE"
        )
    if (config or overrides) and not stage:
        raise UserError("a config without its stage", "say which: --for FAMILY STAGE")
    asked = Asked(look, names[0] if names else None, stage, config, overrides, nodes, wait, online)
    found: list[Check] = []

    def kept() -> Iterator[Check]:
        for check in _checks(asked):
            found.append(check)
            yield check

    if look.json:
        shown = [asdict(check) | {"said": clean(check.said), "remedy": clean(check.remedy or "")} for check in kept()]
        print_json({"profile": asked.profile, "ok": all(one.state != "FAIL" for one in found), "checks": shown})
    else:
        for line in text_lines(kept()):
            print(line, flush=True)
        print(f"\n{summary(found)}")
    return 1 if any(check.state == "FAIL" for check in found) else 0


def _checks(asked: Asked) -> Iterator[Check]:
    """Everything, as it is found out: what takes longest comes last."""
    loaded, recipe = None, None
    try:
        loaded = load_profile(asked.profile) if asked.profile else None
    except UserError as error:
        yield profile.PROFILE.fail(asked.profile or "", error.message, error.remedy or "correct env.toml")
    settings = loaded.profile.set if loaded else {}
    overrides = (*(f"{key}={json.dumps(value)}" for key, value in settings.items()), *asked.overrides)
    if asked.stage:
        try:
            recipe = read_recipe(*asked.stage, asked.config, overrides)
        except UserError as error:
            yield RECIPE.fail("recipe", error.message, error.remedy or "correct the config")
    chosen = loaded.profile if loaded else None
    if (
        loaded and chosen and recipe and recipe.container
    ):  # it comes before the profile's, which the jobs have otherwise
        chosen = chosen.model_copy(update={"container_image": recipe.container})
        loaded = replace(loaded, profile=chosen)
    home = asked.look.store.home
    wanted = recipe.wanted_bytes if recipe else 0
    yield from machine.checks(chosen, home, wanted, online=asked.online)
    of_nodes = False
    if loaded is None or loaded.profile.runs_here:
        yield from _packages(recipe)
    if loaded is not None:
        there = transport_of(loaded.profile)
        yield from profile.checks(loaded, there)
        if isinstance(loaded.profile, Slurm):
            takes = True
            for check in scheduler.checks(loaded.profile, there):
                takes = takes and (check.name, check.state) != (scheduler.LIKE_THIS, "FAIL")
                yield check
            if not asked.nodes or not takes:
                yield nodes.NODES.skip(
                    "nodes", "Slurm would not start a job" if asked.nodes else "--no-nodes was given"
                )
            else:
                read = yield from nodes.NODES.guarded("srun", partial(_nodes, asked, loaded.profile, recipe))
                if read and recipe and asked.stage:
                    described = nodes.described(loaded.profile, read, _home(asked, loaded.profile))
                    recipe, of_nodes = read_recipe(*asked.stage, asked.config, overrides, described), True
    if recipe:
        yield from recipe_needs.checks(recipe, chosen, asked.look.store, of_nodes=of_nodes)


def _packages(recipe: Recipe | None) -> Iterator[Check]:
    """Those that a step would be started with here."""
    engine = recipe.engine if recipe else None
    say("importing PyTorch and what belongs to it, each in a process of its own")
    facts = packages.ask_here(
        _python(engine), {"imports": packages.modules(engine, ray=bool(recipe and recipe.uses_ray))}
    )
    if "error" in facts:
        yield PACKAGES.fail("Python", facts["error"], f"try it: {_python(engine)} --version")
        return
    yield from packages.judge(PACKAGES, facts, packages.pins(engine), engine)


def _nodes(asked: Asked, chosen: Slurm, recipe: Recipe | None) -> Generator[Check, None, list[packages.Facts]]:
    """Look around on every node; returns what was found there."""
    home = _home(asked, chosen)
    engine = recipe.engine if recipe else None
    python = nodes.python_of(chosen, _python(engine))
    imports = packages.modules(engine, ray=bool(recipe and recipe.uses_ray)) if python != nodes.OF_THE_NODE else []
    folder = PurePosixPath(chosen.remote_job_dir or jobs_folder(home))
    some = f"{chosen.nodes} nodes" if chosen.nodes > 1 else "a node"
    say(f"asking {some} by srun; waiting {asked.wait} s at most until free (--wait), or leave it out with --no-nodes")
    question = {"imports": imports, "folders": nodes.folders(chosen, home)}
    facts, about = nodes.ask(chosen, transport_of(chosen), python, folder, question, asked.wait)
    yield from about
    if facts:
        room_at = home, recipe.wanted_bytes if recipe else 0
        yield from nodes.judge(chosen, facts, packages.pins(engine) if imports else None, engine, room_at)
    return facts


def _home(asked: Asked, chosen: Slurm) -> str:
    """The store that the jobs write to."""
    shared = str(PurePosixPath(chosen.remote_job_dir)) if chosen.tunnel == "ssh" and chosen.remote_job_dir else None
    return chosen.home or shared or str(asked.look.store.home)


def _python(engine: str | None) -> str:
    """The Python that steps with an engine start with here."""
    environment = environment_of(engine) if engine else None
    apart = environment is not None and environment.runs_step and not environment.is_here
    return str(environment.programs / "python") if environment and apart and environment.programs else sys.executable
