"""Where a step runs, and the settings that follow from it: recipe, then profile, then command line.

A recipe can request machines in `run.env`, with the keys of env.toml. `run.env.nodes=8` on the command line takes
precedence.
"""

import getpass
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import yaml

from nemotron_app.launch import composed, config_of, for_one_stage
from nemotron_app.request import MACHINE, Request
from nemotron_cluster.job import Job
from nemotron_cluster.limits import seconds_of
from nemotron_cluster.profiles import TWINS, Loaded, Local, Profile, Slurm, load_profile, merge_settings
from nemotron_cluster.slurm.script import lead_of
from nemotron_shared.artifacts import Store
from nemotron_shared.config.compose import Composed, layout_for
from nemotron_shared.config.files import require_plain_numbers
from nemotron_shared.config.overrides import COMMAND_LINE, Said, flat, override, override_key
from nemotron_shared.config.references import engine_of, resolve_section, setting
from nemotron_shared.machine.environments import installed
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system.console import say
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.trackers import can_log

DRIVERS = ("nemo_rl",)
"""Engines with a single driver process, whose workers are started by Ray."""
ENGINE = "nemo_evaluator_launcher"
ALONE = ("nemo_evaluator", ENGINE)
"""Engines with a single process, regardless of the profile."""
SHARING = ("transformers", "trl")
MOST_SAID = 300


@dataclass(frozen=True)
class Place:
    """A profile adapted to one step, and the step's request with the settings that follow from it."""

    loaded: Loaded
    request: Request
    composed: Composed
    store: Path
    """The store of local commands; records of jobs are kept next to it."""
    here: Local | None = None
    """The local backend, if the step runs on this machine and itself submits jobs to the profile's cluster."""
    unused: str | None = None
    """Why some of the profile's processes have nothing to do, in words."""

    @property
    def profile(self) -> Profile:
        """The profile that the step's own job is submitted with."""
        return self.here or self.loaded.profile


def place_of(stage: str, verb: str, request: Request) -> Place:
    """Merge recipe, profile and command line.

    Raises:
        UserError: unknown profile, or an invalid value in it or in `run.env`.
    """
    asked = request.remote
    assert asked is not None
    typed = {key: _value(text) for key, text in request.machine_settings.items()}
    request = request.without_machine()
    loaded = load_profile(asked.profile)
    config, found = config_of(request, stage), composed(stage, request)
    recipe: Any = resolve_section(found.tree, "run").get("env") or {}
    if not isinstance(recipe, dict):
        raise UserError(f"run.env holds keys of env.toml, and here it is {recipe!r}", "write: run.env.nodes=4")
    origins = {key: found.origins.get(f"{MACHINE}{key}", config) for key in recipe}
    loaded = merge_settings(loaded, recipe, typed, origins | dict.fromkeys(typed, COMMAND_LINE))
    if "partition" not in typed and isinstance(profile := loaded.profile, Slurm):
        partition = (profile.run_partition if asked.mode == "run" else profile.batch_partition) or profile.partition
        loaded = replace(loaded, profile=profile.model_copy(update={"partition": partition}))
    unused = _unused(loaded, found) if verb == "train" else None
    if unused is not None:
        loaded = unused.without
    store = Store.open(resolve_section(found.tree, "run")["home"]).home
    decided = _decided(loaded, stage, verb, found, store)
    here = here_of(verb, found, loaded.profile)
    if here is not None:
        require_model(loaded, found)
        decided = [text for text in decided if not is_elsewhere(loaded.profile) or override_key(text) != "run.home"]
        decided += settings(loaded, home_of(loaded.profile, store))
        left = f"; it is not told: {', '.join(left)}" if (left := left_out(loaded.profile)) else ""
        say(f"the evaluation's launcher runs on this machine and submits its own jobs to {loaded.name}{left}")
    elif verb == "train":
        decided += _layout(loaded, stage, found, replace(request, overrides=(*decided, *request.overrides)))
    request = replace(request, overrides=(*decided, *request.overrides))
    try:
        return Place(loaded, request, composed(stage, request), store, here, unused and unused.why)
    except UserError as error:  # the profile was valid without them
        what = f"{loaded.file} [{loaded.name}] set: {error.message.removeprefix(f'{COMMAND_LINE}: ')}"
        raise UserError(what, f'a setting of one stage begins with its name: "{stage}.KEY" = ...') from error


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


class Unused(NamedTuple):
    """The profile without the processes that have nothing to do, and why."""

    without: Loaded
    why: str


def _unused(loaded: Loaded, composed: Composed) -> Unused | None:
    """Processes beyond a number that divides the rows of a step: a tiny recipe has only eight rows."""
    profile, rows = loaded.profile, _rows(composed)
    each = profile.processes_per_node
    if rows is None or rows % (profile.nodes * each) == 0:
        return None
    sizes = product(range(1, profile.nodes + 1), range(1, each + 1))
    fits = [(nodes, some) for nodes, some in sizes if rows % (nodes * some) == 0]
    nodes, some = max(fits, key=lambda fit: (fit[0] * fit[1], -fit[0]))
    processes, on = profile.nodes * each, f"on {nodes} node{'s' if nodes > 1 else ''}"
    used = f"{rows} rows per step: {nodes * some} of the {processes} processes of {loaded.name} are used, {on}"
    written = [key for key in TWINS if getattr(profile, key, None)]
    wanted = {"nodes": nodes, "gpus_per_node": min(some, profile.gpus_per_node)}
    wanted |= dict.fromkeys(written or TWINS[:1], some)
    change = {key: value for key, value in wanted.items() if value != getattr(profile, key)}
    why = dict.fromkeys(change, f"{rows} rows per step")
    for key in change.keys() & loaded.origins.keys():
        why[key] += f"; {loaded.origins[key]} says {getattr(profile, key)}"
    reduced = replace(loaded, profile=profile.model_copy(update=change), origins=loaded.origins | why)
    return Unused(reduced, f"{used}; a multiple of {processes} rows would use all")


def _layout(loaded: Loaded, stage: str, found: Composed, request: Request) -> list[Said]:
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
    for key, value in flat(profile.set):
        if own := for_one_stage(override(key, value), stage):
            said.append(Said(own, loaded.origins.get(f"set.{key}", loaded.origins.get("set", origin))))
    return said


def last_save(profile: Slurm) -> str | None:
    """Latest time by which a job must have saved, in NeMo-RL's format: DD:HH:MM:SS since its start. None: no limit."""
    limit = seconds_of(profile.time)
    if limit is None:
        return None
    minutes, seconds = divmod(limit - lead_of(profile.signal_lead, profile.time), 60)
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
    machine["profile"] = place.loaded.name
    machine["sees_files"] = not is_elsewhere(place.profile) and _is_seen(home_of(place.profile, place.store))
    machine["wandb"] = _has_wandb_key(place.profile, job)
    if not (place.profile.python or job.container or is_elsewhere(place.profile)):  # the job uses this machine's Python
        here = job.python == sys.executable
        machine["packages"] = installed(None if here else Path(job.python).parent.parent)
    return machine | ({"gpus": {"name": f"GPU of {place.loaded.name}", "count": gpus}} if gpus else {})


def _is_seen(home: str) -> bool:
    """Whether a folder may be on this machine; a profile may name one of a file system that only the cluster has."""
    path = Path(home).expanduser().absolute()
    return any(folder.exists() for folder in (path, *path.parents[:-1]))


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


# Evaluations through nemo-evaluator-launcher: with --run or --batch it gets the profile and runs on this machine.
#
# The launcher connects to the login node by ssh and submits jobs itself. Their image serves the model and does not
# contain the launcher. Here it is a background process, which submits, waits, and publishes the results.

EXECUTION = "engine.execution"
LEFT_OUT = ("setup_lines", "port", "identity", "ssh_options", "signal_lead", "requeue", "container_runtime", "python")
"""Profile keys that have no equivalent in the launcher."""


def here_of(verb: str, composed: Composed, profile: Profile) -> Local | None:
    """The local backend that runs the launcher, if the step is one of its evaluations."""
    if verb != "train" or engine_of(composed.tree) != ENGINE or not isinstance(profile, Slurm):
        return None
    return Local(executor="local", secrets=profile.secrets)


def require_model(loaded: Loaded, composed: Composed) -> None:
    """Require a model that this machine can resolve.

    Raises:
        UserError: the model would be in the store of a cluster that is reached over ssh.
    """
    profile = loaded.profile
    if isinstance(profile, Slurm) and profile.tunnel == "ssh" and setting(composed.tree, "run.model") is not None:
        raise UserError(
            f"{loaded.name} is reached over ssh, and its artifacts cannot be read from here, where the launcher runs",
            "run this on its login node, with a profile without tunnel; or name the folders there: run.model=null "
            "engine.deployment.checkpoint_path=FOLDER engine.params.tokenizer=FOLDER",
        )


def settings(loaded: Loaded, home: str) -> Iterator[Said]:
    """The profile as settings of the launcher.

    Args:
        home: the artifact store, which the containers must see.
    """
    profile = loaded.profile
    assert isinstance(profile, Slurm)
    name = f"{loaded.file.name} [{loaded.name}]"

    def said(key: str, text: str) -> Said:
        return Said(text, loaded.origins.get(key, name))

    values = {"type": ("executor", "slurm"), "hostname": ("host", profile.host)}
    values["username"] = "user", profile.user or getpass.getuser()
    values |= {key: (key, getattr(profile, key)) for key in ("account", "partition")}
    if "time" in profile.model_fields_set:
        minutes, seconds = divmod(seconds_of(profile.time) or 0, 60)  # the launcher hands it to Slurm: 0 means no limit
        values["walltime"] = "time", f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"
    folder = profile.remote_job_dir if profile.tunnel == "ssh" else home
    values["output_dir"] = "home", str(PurePosixPath(str(folder)) / "evaluations")
    yield from (said(key, override(f"{EXECUTION}.{to}", text)) for to, (key, text) in values.items() if text)
    if profile.gpus_option == "none":
        yield said("gpus_option", f"{EXECUTION}.gres=null")
    yield from (
        said(key, override(f"++{EXECUTION}.sbatch_extra_flags.{to}", text)) for key, to, text in _flags(profile)
    )
    if profile.exclusive is False:
        yield said("exclusive", f"++{EXECUTION}.sbatch_extra_flags.exclusive=false")
    mounts = list(profile.mounts)
    if profile.tunnel == "local" and not any(PurePosixPath(home).is_relative_to(one.split(":")[0]) for one in mounts):
        mounts.append(f"{home}:{home}")
    if mounts:
        yield said("mounts", override(f"{EXECUTION}.mounts.both", mounts))
    for variable, text in profile.env_vars.items():
        yield said("env_vars", override(f"++engine.env_vars.{variable}", f"lit:{text}"))
    for key in ("project", "entity") if loaded.wandb else ():
        if text := getattr(loaded.wandb, key):
            yield Said(override(f"engine.wandb.{key}", text), f"{loaded.file.name} [wandb]")


def _flags(profile: Slurm) -> Iterator[tuple[str, str, str]]:
    """sbatch options without a key in the launcher: the profile's key, and the option's name and value."""
    for key in ("qos", "reservation", "constraint"):
        if text := getattr(profile, key):
            yield key, key, text
    if profile.mem or profile.exclusive is not False:
        yield "mem", "mem", profile.mem or "0"
    if profile.cpus_per_task:
        yield "cpus_per_task", "cpus-per-task", str(profile.cpus_per_task)
    for option in profile.extra_directives:
        if long := re.fullmatch(r"--([\w-]+)=(.+)", option):
            yield "extra_directives", long[1], long[2]


def left_out(profile: Profile) -> list[str]:
    """Profile keys that are set but cannot be passed to the launcher."""
    assert isinstance(profile, Slurm)
    said = [key for key in LEFT_OUT if key in profile.model_fields_set]
    return said + [one for one in profile.extra_directives if not re.fullmatch(r"--[\w-]+=.+", one)]
