"""What a recipe requires of a cluster, for `nemotron doctor --for`: from its dry run and its guide."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemotron_app.check.expectations import choose
from nemotron_app.launch import config_of, dry_run_of
from nemotron_app.remote.place import Remote
from nemotron_cluster.doctor.report import Check, Group
from nemotron_cluster.doctor.slurm import minutes
from nemotron_cluster.profiles import Profile, Slurm
from nemotron_shared.artifacts import Store
from nemotron_shared.errors import UserError, did_you_mean
from nemotron_shared.families import families
from nemotron_shared.runtime.disk import size
from nemotron_shared.stages import STAGES

if TYPE_CHECKING:
    from nemotron_app.main import Request

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
) -> "Request":
    """A dry-run request for a stage.

    Raises:
        UserError: unknown model or stage.
    """
    from nemotron_app.main import Request

    if family not in families():
        there = f"there are: {', '.join(families())}"
        raise UserError(f"--for: no model named '{family}'", did_you_mean(family, families(), there))
    if stage not in families()[family].stages:
        raise UserError(f"--for: {family} has no stage '{stage}'", f"it has: {', '.join(families()[family].stages)}")
    return Request(family, (stage,), config, (*overrides, f"run.family={family}"), True, True, remote=remote)


def read_recipe(request: "Request", machine: Mapping[str, Any] | None = None) -> Recipe:
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
    limit = minutes(profile.time) or 0
    gpus = profile.nodes * profile.gpus_per_node
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
