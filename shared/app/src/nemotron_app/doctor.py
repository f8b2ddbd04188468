"""`nemotron doctor`: check that a machine or a cluster is ready before anything runs there.

nemotron doctor                                 this machine: programs, disk, tokens, packages, GPUs
nemotron doctor YOUR-CLUSTER                    a profile of env.toml: its paths, its Slurm, and each of its nodes
nemotron doctor YOUR-CLUSTER --for super49b sft     and whether it has what a recipe needs
nemotron doctor --for nano3 sft -c nano3_lora_automodel     an engine's packages, and whether they can be imported

Each line is PASS, WARN, FAIL or SKIP (not checked, with the reason). The exit code is 1 if anything FAILs.
"""

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import click

from nemotron_app.check.expectations import choose
from nemotron_app.launch import config_of, dry_run_of
from nemotron_app.remote.place import described, home_of, place_of
from nemotron_app.remote.prepare import job_of, python_here
from nemotron_app.request import Remote, Request
from nemotron_app.store_options import Look, store_options
from nemotron_cluster.doctor import machine, packages, slurm
from nemotron_cluster.doctor.report import Check, Checks, Group, summary, text_lines
from nemotron_cluster.job import jobs_folder
from nemotron_cluster.profiles import Loaded, Profile, Slurm, load_profile
from nemotron_cluster.transport import transport_of
from nemotron_shared.artifacts import Store
from nemotron_shared.config.overrides import require_once, require_unsplit
from nemotron_shared.families import families
from nemotron_shared.stages import STAGES
from nemotron_shared.system.console import say, tell, tell_json
from nemotron_shared.system.disk import size
from nemotron_shared.system.errors import UserError, did_you_mean

RECIPE = Group("recipe")
GUIDES_GB = {("nano3", "rl"): 200, ("super49b", "sft"): 500, ("super49b", "rl"): 500}
"""Free space (GB) that the guides of these recipes ask for: model, data, cache and checkpoints."""
SPARE = 1.25
"""Ratio of a job's time limit to its longest expected run time: loading, compiling, saving."""
SMALLER = "nano3"
"""The family whose recipes to try before those of an experimental model."""


@dataclass(frozen=True)
class Recipe:
    """A stage's config, as its dry run shows it."""

    family: str
    stage: str
    config: str
    values: Mapping[str, Any]
    problems: tuple[str, ...]
    disk_bytes: int

    @property
    def engine(self) -> str | None:
        """The engine's name."""
        return self.values.get("engine", {}).get("name")

    @property
    def container(self) -> str | None:
        """The container image of the recipe."""
        return self.values.get("engine", {}).get("container")

    @property
    def uses_ray(self) -> bool:
        """Whether Ray starts its processes."""
        return self.engine == "nemo_rl" or self.values.get("data_prep", {}).get("executor") == "ray"

    @property
    def size(self) -> tuple[int, int] | None:
        """Nodes and GPUs per node, if the recipe declares them."""
        engine = self.values.get("engine", {})
        nodes, gpus = engine.get("num_nodes"), engine.get("gpus_per_node")
        return (nodes, gpus) if nodes and gpus else None

    @property
    def named_bytes(self) -> int:
        """Total size of the files and folders that the config names, whether copied into the store or read in place."""
        folders = [self.values.get("run", {}).get("model"), self.values.get("data_prep", {}).get("source")]
        named = {Path(one) for one in folders if isinstance(one, str) and Path(one).is_dir()}
        return sum(_bytes(path) for path in named | _files(self.values))

    @property
    def guides_bytes(self) -> int:
        """Free space that the recipe's guide asks for; 0 without a guide."""
        return GUIDES_GB.get((self.family, self.stage), 0) * 10**9 if self.config.startswith(self.family) else 0

    @property
    def wanted_bytes(self) -> int:
        """Free space for a run: the larger of the guide's figure and the known sizes."""
        return max(self.disk_bytes + self.named_bytes, self.guides_bytes)


def request_of(
    family: str, stage: str, config: str | None, overrides: tuple[str, ...], remote: Remote | None
) -> Request:
    """A dry-run request for a stage.

    Raises:
        UserError: unknown model or stage.
    """

    if family not in families():
        there = f"there are: {', '.join(families())}"
        raise UserError(f"--for: no model named '{family}'", did_you_mean(family, families(), there))
    if stage not in families()[family].stages:
        raise UserError(f"--for: {family} has no stage '{stage}'", f"it has: {', '.join(families()[family].stages)}")
    return Request(family, (stage,), config, (*overrides, f"run.family={family}"), True, True, remote=remote)


def read_recipe(request: Request, machine: Mapping[str, Any] | None = None) -> Recipe:
    """Read the stage's own dry run.

    Args:
        machine: the machine to assume instead of this one, in the format of `--machine`.

    Raises:
        UserError: invalid config.
    """
    (stage,) = request.command
    shown = dry_run_of(stage, request, machine)
    name = Path(config_of(request, stage)).stem
    # prefer the plan's figure: not every engine reports what a start needs
    disk = (shown["estimate"] or {}).get("disk") or shown["disk_bytes"]
    return Recipe(request.family, stage, name, shown["config"], tuple(shown["problems"]), disk)


def checks(recipe: Recipe, profile: Profile | None, store: Store) -> Iterator[Check]:
    """Check the recipe's size, disk space, time and problems, against the profile if there is one."""
    made_for = f", made for {recipe.size[0]} nodes of {recipe.size[1]} GPUs" if recipe.size else ""
    title = f"{recipe.family} {recipe.stage} -c {recipe.config}"
    yield RECIPE.ok("recipe", f"{title}: engine {recipe.engine}{made_for}")
    if profile is not None and recipe.size and (profile.nodes, profile.gpus_per_node) != recipe.size:
        what = f"the profile has {profile.nodes} of {profile.gpus_per_node} GPUs; the recipe is{made_for.lstrip(',')}"
        yield RECIPE.warn(
            "nodes", what, "set nodes and gpus_per_node in the profile, or the recipe's keys of that name"
        )
    yield _space(recipe)
    if isinstance(profile, Slurm):
        yield from _time(recipe, profile)
    if families()[recipe.family].experimental:
        tried = f"{SMALLER}-{STAGES[recipe.stage].result.name('').lstrip('-')}"
        if store.versions(tried):
            yield RECIPE.ok("tried first", f"{tried} is in the store")
        else:
            what = f"{recipe.family} is experimental, and {tried} is not in the store"
            yield RECIPE.warn("tried first", what, f"run the same step with {SMALLER} first")
    away = isinstance(profile, Slurm) and profile.tunnel == "ssh"
    for problem in recipe.problems:
        said, _, remedy = problem.partition("\n")
        if away:  # the files are on the cluster
            yield RECIPE.warn("dry run, seen from this machine", said, remedy.strip())
        else:
            yield RECIPE.fail("dry run", said, remedy.strip())
    if not recipe.problems:
        yield RECIPE.ok("dry run", "nothing is in the way")


def _space(recipe: Recipe) -> Check:
    parts = [f"{size(recipe.disk_bytes)} of checkpoints and result (docs/plan.md)"] if recipe.disk_bytes else []
    parts += [f"{size(recipe.named_bytes)} of files that the config names"] if recipe.named_bytes else []
    files = recipe.disk_bytes + recipe.named_bytes
    said = f"{size(files)} in all: {' and '.join(parts)}" if parts else "the files do not tell yet"
    guide = f"; the recipe's guide asks for {size(recipe.guides_bytes)}" if recipe.guides_bytes else ""
    return RECIPE.ok("space", said + guide) if parts or guide else RECIPE.skip("space", said)


def _time(recipe: Recipe, profile: Slurm) -> Iterator[Check]:
    limit = slurm.minutes(profile.time)
    gpus = profile.nodes * profile.gpus_per_node
    if limit is None:
        yield RECIPE.ok("time", f'no limit (time = "{profile.time}")')
        return
    if gpus:
        yield RECIPE.ok("budget", f"{gpus} GPUs for {profile.time}: at most {gpus * limit / 60:,.0f} GPU-hours a job")
    try:
        expected = choose(None, recipe.stage, recipe.values).content.expectations
    except UserError:
        expected = ()
    sums = [one.within.at_most for one in expected if one.metric == "step_seconds" and one.how == "sum"]
    if not sums or sums[0] is None:
        yield RECIPE.skip("time", f"nothing says how long this recipe takes; the limit is {profile.time}")
    elif limit * 60 < sums[0] * SPARE:
        what = f"the steps may take {sums[0] / 3600:.1f} h and the limit is {profile.time}"
        then = "what is not done is queued again" if profile.requeue else "the job ends unfinished"
        yield RECIPE.warn("time", f"{what}: {then}", f"set time to {sums[0] * SPARE / 3600:.0f} hours or more")
    else:
        yield RECIPE.ok("time", f"{profile.time} for steps that take up to {sums[0] / 3600:.1f} h")


def _files(node: Any) -> set[Path]:
    """All strings in a config that are paths of existing files."""
    if isinstance(node, Mapping | list):
        children = node.values() if isinstance(node, Mapping) else node
        return {path for child in children for path in _files(child)}
    if not isinstance(node, str) or not Path(node).suffix or len(node) > 1000:
        return set()
    return {Path(node)} if Path(node).is_file() else set()


def _bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


PACKAGES = Group("packages of this machine")


@dataclass
class Asked:
    """Command-line arguments, and what profile and recipe say, which is collected before any check.

    Attributes:
        machine: description of the job's machine according to the profile, in the format of `--machine`;
            None: this machine.
    """

    look: Look
    profile: str | None
    request: Request | None
    nodes: bool
    wait: int
    online: bool
    loaded: Loaded | None = None
    recipe: Recipe | None = None
    machine: Mapping[str, Any] | None = None


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
    require_unsplit(words)
    overrides = tuple(word for word in words if "=" in word or word.startswith(("~", "+")))
    require_once(overrides)
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
        shown = [check.as_json() for check in kept()]
        tell_json({"profile": asked.profile, "ok": all(one.state != "FAIL" for one in found), "checks": shown})
    else:
        for line in text_lines(kept()):
            tell(line)
        tell(f"\n{summary(found)}")
    return 1 if any(check.state == "FAIL" for check in found) else 0


def _checks(asked: Asked) -> Iterator[Check]:
    """Yield all checks as they complete, slowest last."""
    yield from machine.PROFILE.guarded(asked.profile or "", partial(_load, asked))
    if asked.request:
        yield from RECIPE.guarded("recipe", partial(_read, asked))
    chosen, recipe = asked.loaded.profile if asked.loaded else None, asked.recipe
    wanted = recipe.wanted_bytes if recipe else 0
    yield from machine.check_machine(chosen, asked.look.store.home, wanted, online=asked.online)
    if asked.loaded is None or asked.loaded.profile.runs_here:
        yield from _packages(recipe)
    else:
        there = transport_of(asked.loaded.profile)
        yield from machine.check_profile(asked.loaded, there)
        if isinstance(chosen, Slurm):
            yield from _cluster(asked, chosen)
    if asked.recipe:
        yield from checks(asked.recipe, chosen, asked.look.store)


def _load(asked: Asked) -> Checks:
    """Load the profile, and apply the recipe's settings to it."""
    if asked.profile and asked.request:
        stage = asked.request.command[0]
        place = place_of(stage, "train", asked.request)
        job = job_of(stage, "train", place)
        # the recipe's image takes precedence over the profile's
        changed = place.profile.model_copy(update={"container_image": job.container})
        asked.loaded, asked.request = replace(place.loaded, profile=changed), place.request
        asked.machine = described(place, job)
    elif asked.profile:
        asked.loaded = load_profile(asked.profile)
    yield from ()


def _read(asked: Asked) -> Checks:
    """Run the recipe's dry run."""
    assert asked.request is not None
    asked.recipe = read_recipe(asked.request, asked.machine)
    yield from ()


def _cluster(asked: Asked, chosen: Slurm) -> Iterator[Check]:
    """Check Slurm and its nodes, then the recipe against the nodes that were found."""
    takes = True
    for check in slurm.check_scheduler(chosen, transport_of(chosen)):
        takes = takes and (check.name, check.state) != (slurm.LIKE_THIS, "FAIL")
        yield check
    if not asked.nodes or not takes:
        yield slurm.NODES.skip("nodes", "Slurm would not start a job" if asked.nodes else "--no-nodes was given")
        return
    facts = yield from slurm.NODES.guarded("srun", partial(_nodes, asked, chosen, asked.recipe))
    if facts and asked.machine:
        asked.machine = {**asked.machine, **slurm.describe_nodes(chosen, facts, home_of(chosen, asked.look.store.home))}
        yield from RECIPE.guarded("recipe", partial(_read, asked))


def _packages(recipe: Recipe | None) -> Iterator[Check]:
    """Check the packages that a step started on this machine would use."""
    engine = recipe.engine if recipe else None
    say("importing PyTorch and related packages, each in a separate process")
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
