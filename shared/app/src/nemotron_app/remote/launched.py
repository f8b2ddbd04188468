"""Evaluations through nemo-evaluator-launcher: with --run or --batch it gets the profile and runs on this machine.

The launcher connects to the login node by ssh and submits jobs itself. Their image serves the model and does not
contain the launcher. Here it is a background process, which submits, waits, and publishes the results.
"""

import getpass
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from nemotron_cluster.profiles import Loaded, Local, Profile, Slurm
from nemotron_cluster.slurm.script import seconds_of
from nemotron_shared.config.compose import Composed
from nemotron_shared.config.overrides import Said, override
from nemotron_shared.config.references import engine_of, setting
from nemotron_shared.errors import UserError

ENGINE = "nemo_evaluator_launcher"
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
        values["walltime"] = "time", _clock(profile.time)
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


def _clock(time: str) -> str:
    minutes, seconds = divmod(seconds_of(time), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"
