"""Where a step runs, and the settings that follow from it: recipe, then profile, then command line.

A recipe can request machines in `run.env`, with the keys of env.toml. `run.env.nodes=8` on the command line takes
precedence.
"""

import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

import yaml

from nemotron_app.launch import composed, config_of
from nemotron_app.of_stages import for_one_stage
from nemotron_app.remote import launched
from nemotron_cluster.job import Job
from nemotron_cluster.profiles import TWINS, Loaded, Local, Profile, Slurm, load_profile, merge_settings
from nemotron_cluster.slurm.script import lead_of, seconds_of
from nemotron_shared.artifacts import Store
from nemotron_shared.config.compose import Composed
from nemotron_shared.config.files import require_plain_numbers
from nemotron_shared.config.layouts import layout_for
from nemotron_shared.config.overrides import COMMAND_LINE, Said, override, override_key
from nemotron_shared.config.references import engine_of, resolve_section, setting
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.console import say
from nemotron_shared.runtime.environments import installed
from nemotron_shared.runtime.machine import Machine
from nemotron_shared.runtime.trackers.wandb_key import can_log

if TYPE_CHECKING:
    from nemotron_app.main import Request

ENV = "run.env"
DRIVERS = ("nemo_rl",)
"""Engines with a single driver process, whose workers are started by Ray."""
ALONE = ("nemo_evaluator", launched.ENGINE)
"""Engines with a single process, regardless of the profile."""
SHARING = ("transformers", "trl")
MOST_SAID = 300
Mode = Literal["run", "batch", "stage"]


@dataclass(frozen=True)
class Remote:
    """Arguments of --run, --batch or --stage."""

    mode: Mode
    profile: str


@dataclass(frozen=True)
class Place:
    """A profile adapted to one step, and the step's request with the settings that follow from it."""

    loaded: Loaded
    request: "Request"
    composed: Composed
    store: Path
    """The store of local commands; records of jobs are kept next to it."""
    here: Local | None = None
    """The local backend, if the step runs on this machine and itself submits jobs to the profile's cluster."""

    @property
    def profile(self) -> Profile:
        """The profile that the step's own job is submitted with."""
        return self.here or self.loaded.profile


def place_of(stage: str, verb: str, request: "Request") -> Place:
    """Merge recipe, profile and command line.

    Raises:
        UserError: unknown profile, or an invalid value in it or in `run.env`.
    """
    asked = request.remote
    assert asked is not None
    typed = {key.removeprefix(f"{ENV}."): _value(text) for key, text in _of_machine(request)}
    request = replace(request, overrides=tuple(text for text in request.overrides if not _is_of_machine(text)))
    loaded = load_profile(asked.profile)
    config, found = config_of(request, stage), composed(stage, request)
    recipe: Any = resolve_section(found.tree, "run").get("env") or {}
    if not isinstance(recipe, dict):
        raise UserError(f"run.env holds keys of env.toml, and here it is {recipe!r}", "write: run.env.nodes=4")
    origins = {key: found.origins.get(f"{ENV}.{key}", config) for key in recipe}
    loaded = merge_settings(loaded, recipe, typed, origins | dict.fromkeys(typed, COMMAND_LINE))
    if "partition" not in typed:
        loaded = replace(loaded, profile=_for_mode(loaded.profile, asked.mode))
    if verb == "train":
        loaded = _as_many_as_fit(loaded, found)
    store = Store.open(resolve_section(found.tree, "run")["home"]).home
    decided = _decided(loaded, stage, verb, found, store)
    here = launched.here_of(verb, found, loaded.profile)
    if here is not None:
        launched.require_model(loaded, found)
        decided = [text for text in decided if not is_elsewhere(loaded.profile) or override_key(text) != "run.home"]
        decided += launched.settings(loaded, home_of(loaded.profile, store))
        left = f"; it is not told: {', '.join(left)}" if (left := launched.left_out(loaded.profile)) else ""
        say(f"the evaluation's launcher runs on this machine and submits its own jobs to {loaded.name}{left}")
    elif verb == "train":
        decided += _layout(loaded, stage, found, replace(request, overrides=(*decided, *request.overrides)))
    request = replace(request, overrides=(*decided, *request.overrides))
    try:
        return Place(loaded, request, composed(stage, request), store, here)
    except UserError as error:  # the profile was valid without them
        what = f"{loaded.file} [{loaded.name}] set: {error.message.removeprefix(f'{COMMAND_LINE}: ')}"
        raise UserError(what, f'a setting of one stage begins with its name: "{stage}.KEY" = ...') from error


def _of_machine(request: "Request") -> list[tuple[str, str]]:
    return [(override_key(text), text) for text in request.overrides if _is_of_machine(text)]


def _is_of_machine(text: str) -> bool:
    return override_key(text).startswith(f"{ENV}.")


def _value(text: str) -> Any:
    value = text.partition("=")[2]
    if re.fullmatch(r"[\d:-]+:[\d:]+", value):
        return value  # 12:00:00, which YAML parses as a number
    require_plain_numbers(f"{COMMAND_LINE}: {override_key(text)}", value)
    try:
        return yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(
            f"{text[:MOST_SAID]}: this value cannot be read", "write it as in YAML: run.env.mounts=[/a:/a]"
        ) from error


def _for_mode(profile: Profile, mode: Mode) -> Profile:
    """A Slurm profile may name different partitions for --run and --batch."""
    if not isinstance(profile, Slurm):
        return profile
    partition = profile.run_partition if mode == "run" else profile.batch_partition
    return profile.model_copy(update={"partition": partition or profile.partition})


def _as_many_as_fit(loaded: Loaded, composed: Composed) -> Loaded:
    """Reduce the number of processes to one that divides the rows of a step: a tiny recipe has only eight rows."""
    profile, rows = loaded.profile, _rows(composed)
    each = profile.processes_per_node
    if rows is None or rows % (profile.nodes * each) == 0:
        return loaded
    sizes = product(range(1, profile.nodes + 1), range(1, each + 1))
    fits = [(nodes, some) for nodes, some in sizes if rows % (nodes * some) == 0]
    nodes, some = max(fits, key=lambda fit: (fit[0] * fit[1], -fit[0]))
    say(
        f"{rows} rows per step: {nodes * some} of the {profile.nodes * each} processes of {loaded.name} are used, "
        f"on {nodes} node{'s' if nodes > 1 else ''}"
    )
    written = [key for key in TWINS if getattr(profile, key, None)]
    wanted = {"nodes": nodes, "gpus_per_node": min(some, profile.gpus_per_node)}
    wanted |= dict.fromkeys(written or TWINS[:1], some)
    change = {key: value for key, value in wanted.items() if value != getattr(profile, key)}
    why = {key: f"{rows} rows per step{_instead(loaded, key)}" for key in change}
    return replace(loaded, profile=profile.model_copy(update=change), origins=loaded.origins | why)


def _layout(loaded: Loaded, stage: str, found: Composed, request: "Request") -> list[Said]:
    """The recipe's layout for the profile's GPU count, if it has one and no engine was requested."""
    profile = loaded.profile
    origin = f"{profile.nodes} nodes of {profile.gpus_per_node} GPUs, {loaded.file.name} [{loaded.name}]"
    if any(override_key(text) in ("engine", f"{stage}.engine") for text in request.overrides):
        return []

    def again(word: str) -> Composed:
        return composed(stage, replace(request, overrides=(Said(word, origin), *request.overrides)))

    gpus = profile.nodes * profile.gpus_per_node
    layout = layout_for(found, gpus, again)
    if layout is None:
        return []
    say(f"{loaded.name} has {gpus} GPUs: the layout engine={layout} is used; another one: engine=NAME")
    return [Said(f"engine={layout}", origin)]


def _instead(loaded: Loaded, key: str) -> str:
    """A note about a key whose number was replaced."""
    return f"; {loaded.origins[key]} says {getattr(loaded.profile, key)}" if key in loaded.origins else ""


def _rows(composed: Composed) -> int | None:
    """Rows per step, for engines whose processes only share rows; None for others, which check their layouts."""
    if engine_of(composed.tree) not in SHARING:
        return None
    reinforces = setting(composed.tree, "grpo") is not None
    of_grpo = ("grpo.num_prompts_per_step", "grpo.num_generations_per_prompt")
    sizes = [setting(composed.tree, key) for key in (of_grpo if reinforces else ("train.global_batch_size",))]
    # values that are not numbers are reported by the step's own checks
    return math.prod(sizes) if all(isinstance(size, int) and size > 0 for size in sizes) else None


def _decided(loaded: Loaded, stage: str, verb: str, composed: Composed, store: Path) -> list[Said]:
    """Settings of a step that follow from where it runs."""
    profile, origin = loaded.profile, f"{loaded.file.name} [{loaded.name}]"
    said = [Said(override("run.home", home_of(profile, store)), loaded.origins.get("home", origin))]
    if verb == "train" and engine_of(composed.tree) not in (*DRIVERS, *ALONE):
        said.append(Said(f"run.nproc_per_node={profile.processes_per_node}", origin))
    if loaded.wandb and setting(composed.tree, "logger") is not None and verb == "train":
        table = f"{loaded.file.name} [wandb]"
        for name in ("project", "entity", "name"):
            if value := getattr(loaded.wandb, name):
                said.append(Said(override(f"logger.wandb_{name}", value), table))
    for key, value in _leaves(profile.set):
        text = override(key, value) if isinstance(value, str) else f"{key}={json.dumps(value, default=str)}"
        if own := for_one_stage(text, stage):
            said.append(Said(own, loaded.origins.get(f"set.{key}", loaded.origins.get("set", origin))))
    return said


def _leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of nested tables."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def last_save(profile: Slurm) -> str:
    """Latest time by which a job must have saved, in NeMo-RL's format: DD:HH:MM:SS since its start."""
    seconds = seconds_of(profile.time) - lead_of(profile.signal_lead, profile.time)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours // 24:02}:{hours % 24:02}:{minutes:02}:{seconds:02}"


def home_of(profile: Profile, store: Path) -> str:
    """The store of the jobs: the profile's, or over ssh one next to the jobs, or the store of local commands."""
    if profile.home:
        home = os.path.expandvars(profile.home)
        if "$" in home:
            raise UserError(f"home: a variable of {profile.home} is not set here", "set it, or write the path itself")
        return home
    if isinstance(profile, Slurm) and profile.tunnel == "ssh":
        return str(PurePosixPath(str(profile.remote_job_dir)) / "store")
    return str(store)


def is_elsewhere(profile: Profile) -> bool:
    """Whether the job runs on a machine where local paths are not valid."""
    return not (isinstance(profile, Local) or (isinstance(profile, Slurm) and profile.tunnel == "local"))


def described(place: Place, job: Job) -> Mapping[str, Any]:
    """The machine of a job according to the profile, for the checks of a dry run."""
    gpus = place.profile.gpus_per_node
    if isinstance(place.profile, Local) and not gpus:
        gpus = len(Machine.here(place.store).gpus)
    # a Ray driver is one process, however many workers it starts
    processes = 1 if job.start == "ray" else job.nodes * job.processes_per_node
    machine: dict[str, Any] = {"nodes": job.nodes, "processes": processes}
    machine["sees_files"] = not is_elsewhere(place.profile)
    machine["wandb"] = _has_wandb_key(place.profile, job)
    if not (place.profile.python or job.container or is_elsewhere(place.profile)):  # the job uses this machine's Python
        here = job.python == sys.executable
        machine["packages"] = installed(None if here else Path(job.python).parent.parent)
    return machine | ({"gpus": {"name": f"GPU of {place.loaded.name}", "count": gpus}} if gpus else {})


def _has_wandb_key(profile: Profile, job: Job) -> bool | None:
    """Whether W&B would log in within a job; None if its key may be on a remote machine.

    A container on Slurm does not mount the home folder, so a login stored there does not count.
    """
    known = {**job.environment, **{name: os.environ[name] for name in job.secrets}}
    environment = {**os.environ, **known} if isinstance(profile, Local) else known
    in_image = isinstance(profile, Slurm) and job.container is not None
    if can_log(environment, files=not is_elsewhere(profile) and not in_image):
        return True
    return None if is_elsewhere(profile) and not in_image else False
