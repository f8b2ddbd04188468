"""Descriptions of machines: env.toml, and the files of --machine."""

import os
import tomllib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from nemotron_cluster.profiles import VARIABLE, Loaded, load_profile, profile_names, read_tables
from nemotron_prove.input.second import fault_of, is_count, is_number, require, written
from nemotron_prove.input.target import Files, Target
from nemotron_shared.runtime.machine import Machine

ENV = b"""[base]
executor = "slurm"
account = "ABC"
partition = "boost"
gpus_per_node = 4
nodes = 2
time = "1-02:00:00"
mounts = ["/lustre:/lustre", "/a:/b:ro"]
extra_directives = ["--nodelist=n[1-4]"]
env_vars = {A = "1"}

[mine]
extends = "base"
qos = "normal"
signal_lead = 120

[wandb]
project = "p"
tags = ["a"]
"""
LOCAL = (
    b"[mine]\nexecutor = \"local\"\nhome = '/data/store'\nsetup_lines = ['module load cuda']\nset = {run.seed = 1}\n"
)
SKY = b"[mine]\nexecutor = 'skypilot'\naccelerators = 'H100:8'\ncloud = 'aws'\nfile_mounts = {'/a' = 's3://b'}\n"
MACHINE = {
    "python": "3.12", "nodes": 8, "processes": 64, "gpus": {"name": "H100", "count": 8, "memory_gb": 80},
    "memory_gb": 2000, "free_disk_gb": 20000, "packages": {"torch": "2.9.0", "megatron-core": "0.19.2"},
}  # fmt: skip
EXECUTORS = ("local", "docker", "slurm", "skypilot", "dgxcloud", "lepton", "kubeflow")


@contextmanager
def _named(file: Path) -> Generator[None]:
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(file)
    try:
        yield
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def _load(folder: Path, files: Files) -> Loaded:
    with _named(folder / "env.toml"):
        loaded = load_profile("mine")
    for name in profile_names(read_tables(folder / "env.toml")):
        assert isinstance(name, str)
    assert loaded.profile.processes_per_node >= 1
    return loaded


def _env_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        assert isinstance(made, Loaded)
        tables = tomllib.loads(files["env.toml"].decode("utf-8-sig"))
        chain, name = [], "mine"
        while name is not None:
            require(name in tables and name not in chain, "extends of what is not there, or in a circle")
            chain.append(name)
            name = tables[name].get("extends")
        values: dict[str, Any] = {}
        for table in reversed(chain):
            values |= tables[table]
        require(values.get("executor", "local") in EXECUTORS, "an unknown executor")
        for key in ("nodes", "nproc_per_node", "gpus_per_node", "signal_lead"):
            least = 0 if key == "gpus_per_node" else 1
            require(
                key not in values or (is_count(written(values[key])) and written(values[key]) >= least),
                f"{key} that is no count",
            )
        for line in _texts(made.profile.model_dump(exclude={"set"})):
            require(not {"\n", "\r", "\0"} & set(line), "a line that would be two in a script")

    return fault_of(read)


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for one in inner for text in _texts(one)]


def _machines() -> list[Files]:
    toml = b'processes = 4\nmemory_gb = 32\n[gpus]\nname = "H200"\ncount = 4\n'
    return [{"machine.yaml": yaml.safe_dump(MACHINE).encode()}, {"machine.toml": toml}]


def _describe(folder: Path, files: Files) -> Machine:
    return Machine.described(folder / next(iter(files), "machine.yaml"))


def _machine_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        assert isinstance(made, Machine)
        ((name, content),) = files.items()
        said = tomllib.loads(content.decode()) if name.endswith(".toml") else yaml.safe_load(content.decode())
        require(is_count(written(said["processes"])), "processes that are no count")
        require(is_count(written(said.get("nodes", 1))) and made.nodes > 0, "nodes that are no count")
        require(
            made.processes_per_node >= 1 and made.processes == written(said["processes"]) > 0,
            "another number than is written",
        )
        for key in ("memory_gb", "free_disk_gb"):
            require(key not in said or is_number(written(said[key])), f"{key} that is no number")
        gpus = said.get("gpus")
        require(
            gpus is None or (is_count(written(gpus["count"])) and 1 <= len(made.gpus) <= 1024),
            "more GPUs than a node has",
        )
        require(gpus is None or is_number(written(gpus.get("memory_gb", 1))), "a memory that is no number")

    return fault_of(read)


WORDS = ("executor", "extends", "slurm", "mine", "time", "mounts", "env_vars", "[mine]\n", "a\nb", "--output=x", ":")
TARGETS = (
    Target(
        "env_toml",
        "env.toml",
        lambda: [{"env.toml": one} for one in (ENV, LOCAL, SKY)],
        _load,
        _env_fault,
        WORDS,
        share=0.5,
    ),
    Target(
        "machine", "files of --machine", _machines, _describe, _machine_fault, ("gpus", "processes", "3.12"), share=0.5
    ),
)
