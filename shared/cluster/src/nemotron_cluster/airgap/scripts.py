"""The four scripts of a site whose compute nodes have no network, from a profile of env.toml.

    setup_environment.sh        on the login node: fetch, and an environment
    build_mamba_deps.slurm      compiles what needs CUDA
    test_training_simple.slurm  one process on one GPU
    train_automodel.slurm       all GPUs; compiles first where that has not been done

They are a beginning to edit: `--run` and `--batch` submit jobs without them.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nemotron_cluster.profiles.find import Loaded
from nemotron_cluster.profiles.schema import Slurm
from nemotron_cluster.secrets import refuse_written
from nemotron_cluster.slurm.directives import directives, site_options
from nemotron_shared.atomic import write_text
from nemotron_shared.errors import UserError

BODIES = Path(__file__).with_name("bodies")
LOGS = "logs/slurm"
TEST_TIME = "00:30:00"
"""What queues for debugging allow."""
LOOKS_LIKE_CODE = "# shellcheck disable=SC2016"
"""A value with a $ in it is meant as it stands."""


@dataclass(frozen=True)
class Layout:
    """What the scripts are about.

    Attributes:
        repository: the checkout, for the login node.
        folder: of `airgap fetch`; it and `environment` as seen from where sbatch is called.
        fetch: options of `airgap fetch`.
        architectures: GPUs to compile for; none: those of the node.
        arguments: of the training.
    """

    repository: str
    folder: str
    environment: str
    fetch: tuple[str, ...]
    architectures: tuple[str, ...]
    arguments: tuple[str, ...]


def scripts(loaded: Loaded, layout: Layout) -> dict[str, str]:
    """The scripts by name.

    Raises:
        UserError: the profile is not one of Slurm, or holds a secret.
    """
    profile = loaded.profile
    if not isinstance(profile, Slurm):
        what = f"{loaded.file}: [{loaded.name}] has the executor '{profile.executor}'"
        raise UserError(what, 'the scripts are for Slurm: name a profile with executor = "slurm"')
    refuse_written(profile, loaded.origins)
    one_gpu = min(profile.gpus_per_node, 1)
    build = {"partition": profile.build_partition or profile.partition, "time": profile.build_time}
    test = {"partition": profile.run_partition or profile.partition, "time": TEST_TIME}
    train = {"partition": profile.batch_partition or profile.partition}
    named = {
        "setup_environment.sh": [],
        "build_mamba_deps.slurm": _directives(profile, "build_mamba_deps", 1, one_gpu, build),
        "test_training_simple.slurm": _directives(profile, "test_training_simple", 1, one_gpu, test),
        "train_automodel.slurm": _directives(profile, "train_automodel", profile.nodes, profile.gpus_per_node, train),
    }
    return {name: _script(name, [*lines], profile, layout) for name, lines in named.items()}


def write_scripts(found: dict[str, str], output: Path) -> None:
    """Put them into a folder, and make the one for the logs beside it: Slurm makes none, and the job would fail."""
    for name, text in found.items():
        write_text(output / name, text)
        (output / name).chmod(0o755)
    (output.absolute().parent / LOGS).mkdir(parents=True, exist_ok=True)


def _directives(profile: Slurm, name: str, nodes: int, gpus: int, own: Mapping[str, str | None]) -> Iterator[str]:
    """Args: own: what differs from the profile in this script."""
    profile = profile.model_copy(update=own)
    options = site_options(profile, name, nodes, tasks=1, gpus=gpus, cpus=profile.cpus_per_task)
    yield from directives(options | {"output": f"{LOGS}/{name}_%j.out"})
    yield from (f"#SBATCH {option}" for option in profile.extra_directives)


def _script(name: str, directives: list[str], profile: Slurm, layout: Layout) -> str:
    """Directives, variables, the profile's lines and the fixed part, in this order."""
    body = (BODIES / name).read_text(encoding="utf-8")
    values = {
        "repository": shlex.quote(layout.repository),
        "folder": shlex.quote(layout.folder),
        "environment": shlex.quote(layout.environment),
        "fetch": f"({shlex.join(layout.fetch)})",
        "architectures": f"({shlex.join(word for each in layout.architectures for word in ('--arch', each))})",
        "processes": str(profile.processes_per_node),
        "arguments": f"({shlex.join(layout.arguments)})",
    }
    variables = [f"{key}={value}" for key, value in values.items() if re.search(rf"\$\{{?{key}\b", body)]
    variables += [f"export {key}={shlex.quote(value)}" for key, value in profile.env_vars.items()]
    # a login shell: sites define `module` there
    parts = [
        "\n".join(["#!/bin/bash -l", *directives, LOOKS_LIKE_CODE]),
        "\n".join(variables),
        "\n".join(profile.setup_lines),
        body,
    ]
    return "\n\n".join(part for part in parts if part)
