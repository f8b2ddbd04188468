"""`nemotron doctor`: check that a machine or a cluster is ready before anything runs there.

nemotron doctor                                 this machine: programs, disk, tokens, packages, GPUs
nemotron doctor YOUR-CLUSTER                    a profile of env.toml: its paths, its Slurm, and each of its nodes
nemotron doctor YOUR-CLUSTER --for super49b sft     and whether it has what a recipe needs
nemotron doctor --for nano3 sft -c nano3_lora_automodel     an engine's packages, and whether they can be imported

Each line is PASS, WARN, FAIL or SKIP (not checked, with the reason). The exit code is 1 if anything FAILs.
"""

from collections.abc import Generator, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import click

from nemotron_app import recipe_needs
from nemotron_app.recipe_needs import RECIPE, Recipe, read_recipe, request_of
from nemotron_app.remote.place import Remote, described, home_of, place_of
from nemotron_app.remote.prepare import job_of, python_here
from nemotron_app.store_options import Look, store_options
from nemotron_cluster.doctor import machine, packages, slurm
from nemotron_cluster.doctor.report import Check, Checks, Group, clean, summary, text_lines
from nemotron_cluster.job import jobs_folder
from nemotron_cluster.profiles import Loaded, Slurm, load_profile
from nemotron_cluster.transport import transport_of
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.console import say, tell, tell_json

if TYPE_CHECKING:
    from nemotron_app.main import Request

PACKAGES = Group("packages of this machine")


@dataclass(frozen=True)
class Asked:
    """Command-line arguments."""

    look: Look
    profile: str | None
    request: "Request | None"
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
    """See the module docstring."""
    overrides = tuple(word for word in words if "=" in word or word.startswith(("~", "+")))
    names = [word for word in words if word not in overrides]
    if len(names) > 1:
        raise UserError(
            f"'{names[1]}' after the profile '{names[0]}'", "say one profile; a recipe is --for FAMILY STAGE"
        )
    if (config or overrides) and not stage:
        raise UserError("a config without its stage", "say which: --for FAMILY STAGE")
    name = names[0] if names else None
    request = request_of(*stage, config, overrides, Remote("batch", name) if name else None) if stage else None
    asked = Asked(look, name, request, nodes, wait, online)
    found: list[Check] = []

    def kept() -> Iterator[Check]:
        for check in _checks(asked):
            found.append(check)
            yield check

    if look.json:
        shown = [asdict(check) | {"said": clean(check.said), "remedy": clean(check.remedy or "")} for check in kept()]
        tell_json({"profile": asked.profile, "ok": all(one.state != "FAIL" for one in found), "checks": shown})
    else:
        for line in text_lines(kept()):
            tell(line)
        tell(f"\n{summary(found)}")
    return 1 if any(check.state == "FAIL" for check in found) else 0


@dataclass
class Plan:
    """What the profile and the recipe say, collected before any check.

    Attributes:
        machine: description of the job's machine according to the profile, in the format of `--machine`;
            None: this machine.
    """

    loaded: Loaded | None = None
    request: "Request | None" = None
    recipe: Recipe | None = None
    machine: Mapping[str, Any] | None = None


def _checks(asked: Asked) -> Iterator[Check]:
    """Yield all checks as they complete, slowest last."""
    plan = Plan(request=asked.request)
    yield from machine.PROFILE.guarded(asked.profile or "", partial(_plan, asked, plan))
    if plan.request:
        yield from RECIPE.guarded("recipe", partial(_read, plan))
    chosen, recipe = plan.loaded.profile if plan.loaded else None, plan.recipe
    wanted = recipe.wanted_bytes if recipe else 0
    yield from machine.check_machine(chosen, asked.look.store.home, wanted, online=asked.online)
    if plan.loaded is None or plan.loaded.profile.runs_here:
        yield from _packages(recipe)
    else:
        there = transport_of(plan.loaded.profile)
        yield from machine.check_profile(plan.loaded, there)
        if isinstance(chosen, Slurm):
            yield from _cluster(asked, plan, chosen)
    if plan.recipe:
        yield from recipe_needs.checks(plan.recipe, chosen, asked.look.store)


def _plan(asked: Asked, plan: Plan) -> Checks:
    """Load the profile and the recipe, and apply the recipe's settings to the profile."""
    if asked.profile and plan.request:
        stage = plan.request.command[0]
        place = place_of(stage, "train", plan.request)
        job = job_of(stage, "train", place)
        # the recipe's image takes precedence over the profile's
        changed = place.profile.model_copy(update={"container_image": job.container})
        plan.loaded, plan.request = replace(place.loaded, profile=changed), place.request
        plan.machine = described(place, job)
    elif asked.profile:
        plan.loaded = load_profile(asked.profile)
    yield from ()


def _read(plan: Plan) -> Checks:
    """Run the recipe's dry run."""
    assert plan.request is not None
    plan.recipe = read_recipe(plan.request, plan.machine)
    yield from ()


def _cluster(asked: Asked, plan: Plan, chosen: Slurm) -> Iterator[Check]:
    """Check Slurm and its nodes, then the recipe against the nodes that were found."""
    takes = True
    for check in slurm.check_scheduler(chosen, transport_of(chosen)):
        takes = takes and (check.name, check.state) != (slurm.LIKE_THIS, "FAIL")
        yield check
    if not asked.nodes or not takes:
        yield slurm.NODES.skip("nodes", "Slurm would not start a job" if asked.nodes else "--no-nodes was given")
        return
    facts = yield from slurm.NODES.guarded("srun", partial(_nodes, asked, chosen, plan.recipe))
    if facts and plan.machine:
        plan.machine = {**plan.machine, **slurm.describe_nodes(chosen, facts, home_of(chosen, asked.look.store.home))}
        yield from RECIPE.guarded("recipe", partial(_read, plan))


def _packages(recipe: Recipe | None) -> Iterator[Check]:
    """Check the packages that a step started on this machine would use."""
    engine = recipe.engine if recipe else None
    say("importing PyTorch and what belongs to it, each in a process of its own")
    facts = packages.probe_here(
        python_here(engine), {"imports": packages.modules(engine, ray=bool(recipe and recipe.uses_ray))}
    )
    if "error" in facts:
        yield PACKAGES.fail("Python", facts["error"], f"try it: {python_here(engine)} --version")
        return
    yield from packages.check_packages(PACKAGES, facts, packages.pins(engine), engine)


def _nodes(asked: Asked, chosen: Slurm, recipe: Recipe | None) -> Generator[Check, None, list[packages.Facts]]:
    """Probe every node; returns the facts of each."""
    home = home_of(chosen, asked.look.store.home)
    engine = recipe.engine if recipe else None
    python = slurm.python_of(chosen, python_here(engine))
    imports = packages.modules(engine, ray=bool(recipe and recipe.uses_ray)) if python != slurm.OF_THE_NODE else []
    folder = PurePosixPath(chosen.remote_job_dir or jobs_folder(home))
    some = f"{chosen.nodes} nodes" if chosen.nodes > 1 else "a node"
    say(f"asking {some} by srun; waiting {asked.wait} s at most until free (--wait), or leave it out with --no-nodes")
    question = {"imports": imports, "folders": slurm.folders_of(chosen, home)}
    facts, about = slurm.probe_nodes(chosen, transport_of(chosen), python, folder, question, asked.wait)
    yield about
    if facts:
        room_at = home, recipe.wanted_bytes if recipe else 0
        yield from slurm.check_nodes(chosen, facts, packages.pins(engine) if imports else None, engine, room_at)
    return facts
