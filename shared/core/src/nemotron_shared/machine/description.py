"""Another machine, described in a file.

    read_machine(Path("dgx.yaml"))

A description is YAML or TOML; sizes are in GB (10^9 bytes):

    python: "3.12"
    nodes: 8                                  1, if left out
    processes: 64                             of a run, over all nodes
    gpus: {name: H100, count: 8, memory_gb: 80}    of each node; null: none
    memory_gb: 2000
    free_disk_gb: 20000
    packages: {torch: 2.9.0, megatron-core: 0.19.2, megatron-bridge: 0.6.2}

Only `processes` is required: checks of anything left out are skipped.
"""

import math
import tomllib
from pathlib import Path

import yaml
from pydantic import Field, field_validator

from nemotron_shared.config.files import require_plain_numbers
from nemotron_shared.config.schema import Section
from nemotron_shared.config.validate import validate
from nemotron_shared.machine.machine import GB, GPU, Machine, normal_name
from nemotron_shared.system.errors import UserError

MOST_GPUS = 1024
"""Per node; a larger number is a typo."""


class GPUDescription(Section):
    """The GPUs of a node."""

    name: str
    count: int = Field(ge=1, le=MOST_GPUS)
    memory_gb: float = Field(gt=0, default=math.inf)


class MachineDescription(Section):
    """A machine's description in a file."""

    python: str | None = Field(pattern=r"^3\.\d+$", default=None)
    nodes: int = Field(ge=1, default=1)
    processes: int = Field(ge=1)
    gpus: GPUDescription | None = None
    memory_gb: float = Field(gt=0, default=math.inf)
    free_disk_gb: float = Field(ge=0, default=math.inf)
    packages: dict[str, str] | None = None
    sees_files: bool = True
    wandb: bool | None = None
    profile: str | None = None

    @field_validator("python", mode="before")
    @classmethod
    def as_text(cls, value: object) -> object:
        """Refuse an unquoted version: to YAML it is a number, and 3.10 would become 3.1."""
        if isinstance(value, float):
            raise ValueError('write the version in quotation marks: python: "3.12"')
        return value


def read_machine(file: Path) -> Machine:
    """Read a machine's description from YAML or TOML.

    Raises:
        UserError: no such file, or an unknown, missing or wrong key.
    """
    if not file.is_file():
        raise UserError(f"--machine: file {file} not found", "see docs/configuration.md, What a run would do")
    try:
        text = file.read_bytes().decode()  # keep line ends: a lone carriage return is not one in TOML
        if file.suffix != ".toml":
            require_plain_numbers(str(file), text)
        values = tomllib.loads(text) if file.suffix == ".toml" else yaml.safe_load(text)
    except (UnicodeDecodeError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(
            f"{file}: not readable: {(str(error).splitlines() or ['too deep'])[0]}", "correct the file"
        ) from error
    if not isinstance(values, dict):
        raise UserError(f"{file}: not a mapping", "see docs/configuration.md, What a run would do")
    said = validate(MachineDescription, values, {"": file.name})
    gpus = said.gpus
    return Machine(
        python=said.python,
        processes=said.processes,
        gpus=(GPU(gpus.name, gpus.memory_gb * GB),) * gpus.count if gpus else (),
        memory=said.memory_gb * GB,
        free_disk=said.free_disk_gb * GB,
        nodes=said.nodes,
        packages=said.packages and {normal_name(name): version for name, version in said.packages.items()},
        is_here=False,
        sees_files=said.sees_files,
        wandb=said.wandb,
        profile=said.profile,
    )
