"""Write scripts for a site whose compute nodes have no network, from a profile of env.toml.

    setup_environment.sh        on the login node: fetch, and an environment
    build_mamba_deps.slurm      compiles packages that need CUDA
    test_training_simple.slurm  one process on one GPU
    train_automodel.slurm       all GPUs; compiles first if that has not been done
    pull_container.slurm        imports a container's image into a file, if a container is named

They are templates to edit: `--run` and `--batch` submit jobs without them.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nemotron_cluster.limits import seconds_of
from nemotron_cluster.profiles import Loaded, Slurm
from nemotron_cluster.secrets import refuse_written
from nemotron_cluster.slurm.script import directives, enroot_name, site_options
from nemotron_shared.system.atomic import write_text
from nemotron_shared.system.errors import UserError

BODIES = Path(__file__).with_name("bodies")
LOGS = "logs/slurm"
TEST_TIME = "00:30:00"
"""Common limit of debug queues."""
BUILD_TIME = "02:00:00"
BUILD_CPUS, SERIAL_CPUS = 8, 4
"""A GPU's usual share of its node, and the usual limit of serial queues."""
CUDA = re.compile(r"cuda(?:toolkit)?[-/_]?(\d\d)(?:\.(\d+))?(?!\d)", re.IGNORECASE)
"""cuda/12.6, cuda-12.8, CUDA/13.0.1, cudatoolkit/12.2"""
LOOKS_LIKE_CODE = "# shellcheck disable=SC2016"
"""A value that contains a $ is meant literally."""


@dataclass(frozen=True)
class Layout:
    """Parameters of the scripts.

    Attributes:
        repository: the checkout, for the login node.
        folder: of `airgap fetch`; both it and `environment` are relative to where sbatch is called.
        fetch: options of `airgap fetch`.
        architectures: GPUs to compile for; if empty, those of the node.
        arguments: of the training.
        container: the image to import, if any.
    """

    repository: str
    folder: str
    environment: str
    fetch: tuple[str, ...]
    architectures: tuple[str, ...]
    arguments: tuple[str, ...]
    container: str | None = None


def render_scripts(loaded: Loaded, layout: Layout) -> dict[str, str]:
    """The scripts by name.

    Raises:
        UserError: not a Slurm profile, a secret in the profile, or no GPU architectures given although required.
    """
    profile = slurm_profile(loaded)
    refuse_written(profile, loaded.origins)
    elsewhere = profile.build_partition not in (None, profile.partition)
    if elsewhere and not layout.architectures:
        where = f"the partition {profile.build_partition}, which is not the GPUs'"
        remedy = "say for which GPUs to compile, by their compute capability: --arch 8.0 (A100), 9.0 (H100)"
        raise UserError(f"{loaded.file}: [{loaded.name}] builds in {where}", remedy)
    one_gpu = min(profile.gpus_per_node, 1)
    build, test, train = _for_building(profile, elsewhere=elsewhere), _for_testing(profile), _for_training(profile)
    headers = {
        "setup_environment.sh": [],
        "build_mamba_deps.slurm": _directives(build, "build_mamba_deps", gpus=0 if elsewhere else one_gpu),
        "test_training_simple.slurm": _directives(test, "test_training_simple", gpus=one_gpu),
        "train_automodel.slurm": _directives(train, "train_automodel", train.nodes, gpus=train.gpus_per_node),
    }
    if layout.container:
        headers["pull_container.slurm"] = _directives(build, "pull_container", gpus=0)
    return {name: _script(name, [*lines], profile, layout) for name, lines in headers.items()}


def slurm_profile(loaded: Loaded) -> Slurm:
    """Require a Slurm profile.

    Raises:
        UserError: a profile of another kind.
    """
    if not isinstance(loaded.profile, Slurm):
        what = f"{loaded.file}: [{loaded.name}] has the executor '{loaded.profile.executor}'"
        raise UserError(what, 'the scripts are for Slurm: name a profile with executor = "slurm"')
    return loaded.profile


def cuda_of(profile: Slurm) -> tuple[str, str, str] | None:
    """The CUDA that a profile loads: major version, full version, and the key that loads it."""
    lines = [(f"env_vars.{name}", value) for name, value in profile.env_vars.items()]
    lines += [("setup_lines", line) for line in profile.setup_lines]
    found = [(match[1], ".".join(filter(None, match.groups())), key) for key, text in lines
             if not text.lstrip().startswith("#") for match in CUDA.finditer(text)]  # fmt: skip
    return found[-1] if found else None  # the last one comes first on PATH


def _for_building(profile: Slurm, *, elsewhere: bool) -> Slurm:
    """The profile adapted to a single-node job that compiles or imports.

    Args:
        elsewhere: it uses a separate partition, to which the training's QoS, reservation and constraint do not apply.
    """
    own: dict[str, object] = {"exclusive": False, "mem": None, "cpus_per_task": BUILD_CPUS}
    # in the training's queue, the training's own limit is known to be accepted
    usual = _shorter(BUILD_TIME, profile.time)
    if elsewhere:
        own |= dict.fromkeys(("qos", "reservation", "constraint"))
        own |= {"partition": profile.build_partition, "cpus_per_task": SERIAL_CPUS, "extra_directives": []}
        usual = BUILD_TIME
    return profile.model_copy(update={**own, "time": profile.build_time or usual})


def _for_testing(profile: Slurm) -> Slurm:
    """The profile adapted to one process."""
    own = {
        "partition": profile.run_partition or profile.partition,
        "time": _shorter(TEST_TIME, profile.time),
        "cpus_per_task": profile.cpus_per_task or BUILD_CPUS,
        "exclusive": False,
    }
    return profile.model_copy(update=own)


def _for_training(profile: Slurm) -> Slurm:
    """The profile adapted to a job with one task per node, which starts all processes of the node."""
    own: dict[str, object] = {"partition": profile.batch_partition or profile.partition}
    if profile.cpus_per_task and profile.ntasks_per_node:  # then the CPUs are per process
        own["cpus_per_task"] = profile.cpus_per_task * profile.processes_per_node
    if profile.gpus_per_node and not profile.cpus_per_task and "exclusive" not in profile.model_fields_set:
        own |= {"exclusive": True, "mem": profile.mem or "0"}  # otherwise Slurm assigns a single CPU
    return profile.model_copy(update=own)


def _shorter(one: str, other: str) -> str:
    """The shorter of two time limits."""
    return min(one, other, key=lambda each: seconds_of(each) or float("inf"))  # None: no limit


def write_scripts(found: dict[str, str], output: Path) -> None:
    """Write the scripts, and create the log folder next to them: Slurm does not, and the job would fail without it."""
    for name, text in found.items():
        write_text(output / name, text)
        (output / name).chmod(0o755)
    (output.absolute().parent / LOGS).mkdir(parents=True, exist_ok=True)


def _directives(profile: Slurm, name: str, nodes: int = 1, *, gpus: int) -> Iterator[str]:
    """Args: gpus: per node."""
    options = site_options(profile, name, nodes, tasks=1, gpus=gpus, cpus=profile.cpus_per_task)
    return directives(options | {"output": f"{LOGS}/{name}_%j.out", "exclusive": profile.exclusive or None}, profile)


def _script(name: str, header: list[str], profile: Slurm, layout: Layout) -> str:
    """Assemble directives, variables, the profile's lines and the fixed part, in this order."""
    body = (BODIES / name).read_text(encoding="utf-8")
    values = {
        "repository": shlex.quote(layout.repository),
        "folder": shlex.quote(layout.folder),
        "environment": shlex.quote(layout.environment),
        "fetch": f"({shlex.join(layout.fetch)})",
        "architectures": f"({shlex.join(word for each in layout.architectures for word in ('--arch', each))})",
        "processes": str(profile.processes_per_node),
        "arguments": f"({shlex.join(layout.arguments)})",
        "image": shlex.quote(f"docker://{enroot_name(layout.container or '')}"),
        # nvcr.io/nvidia/nemo-rl:v0.7.0 becomes nemo-rl.v0.7.0.sqsh
        "file": shlex.quote(re.sub(r"[:@]", ".", re.split(r"[/#]", layout.container or "")[-1]) + ".sqsh"),
    }
    variables = [f"{key}={value}" for key, value in values.items() if re.search(rf"\$\{{?{key}\b", body)]
    variables += [f"export {key}={shlex.quote(value)}" for key, value in profile.env_vars.items()]
    # a login shell, because sites define `module` there
    parts = [["#!/bin/bash -l", *header, LOOKS_LIKE_CODE], variables, profile.setup_lines, [body]]
    return "\n\n".join("\n".join(part) for part in parts if part)
