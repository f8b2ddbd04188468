"""Parsers of what users write for a command: its words, configs, settings, and descriptions of machines."""

import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import yaml
from fuzz.damage import WORD, Files
from fuzz.parser import (
    Parser,
    is_count,
    is_number,
    unquoted,
    word_examples,
    word_of,
)

from nemotron_app.check.expectations import read_expectations
from nemotron_app.plan import parse_gpus
from nemotron_app.recipes import composed
from nemotron_cluster.profiles import VARIABLE, Loaded, load_profile, profile_names, read_tables
from nemotron_data.sources.reading import Slice, parse_split
from nemotron_engines.modeling.architecture import load_architecture
from nemotron_shared.artifacts.names import Reference, check_alias, parse_reference
from nemotron_shared.config.files import YAML_LOADER, parsed, read_text
from nemotron_shared.config.references import resolve
from nemotron_shared.config.validate import validate
from nemotron_shared.machine.description import read_machine
from nemotron_shared.machine.machine import DEVICES, Machine, device_named
from nemotron_shared.models.references import HubModel, MegatronModel, parse_outside
from stages.sft.schema import SFTConfig

# Words of a command line.

NAME = r"[a-z0-9][a-z0-9._-]*"
REFERENCE = re.compile(rf"(?:art://)?(?:{NAME}(?:/{NAME})*|[A-Za-z]+Artifact(?:-[a-z]+)?)(?::(.*))?", re.DOTALL)
"""docs/artifacts.md, Names: lower-case words, slashes for dashes, older class names; and a version."""


def read_reference(folder: Path, files: Files) -> Reference:
    found = parse_reference(word_of(files))
    if isinstance(found.version, str) and found.version != "latest":
        check_alias(found.version)
    return found


def check_reference(files: Files, made: Reference) -> None:
    written = REFERENCE.fullmatch(word_of(files))
    assert written and written[1] != ""
    assert re.fullmatch(NAME, made.name) and len(made.name) <= 100
    number = re.fullmatch(r"v?([1-9][0-9]*)", written[1] or "")
    assert made.version == (int(number[1]) if number else written[1] or "latest")


def check_address(files: Files, made: HubModel | MegatronModel | None) -> None:
    if isinstance(made, HubModel):
        parts = made.repository.split("/")
        assert len(parts) == 2 and all(re.fullmatch(r"[A-Za-z0-9_.-]+", part) for part in parts)
        assert not any(part.strip(".") == "" or ".." in part for part in parts)
        assert ".." not in made.revision and made.revision.isprintable()
        assert re.fullmatch(NAME, made.name()) and len(made.name()) <= 100
    if isinstance(made, MegatronModel):
        assert "\0" not in str(made.path)


def read_gpus(folder: Path, files: Files) -> tuple[int, str]:
    count, name = parse_gpus(word_of(files))
    device_named(name)
    return count, name


def check_gpus(files: Files, made: tuple[int, str]) -> None:
    count, name = made
    digits = re.match(r"\s*([0-9]+)", word_of(files))
    assert count == (int(digits[1]) if digits else 1) and 1 <= count <= 10**6
    assert name in DEVICES


def check_slice(files: Files, made: tuple[str | None, Slice | None]) -> None:
    name, part = made
    assert name is None or not set("[]") & set(name)
    if part is not None:
        assert re.fullmatch(r"[^\[\]]+\[(-?[0-9]+%?)?:(-?[0-9]+%?)?\]", word_of(files))
        first, end = part.bounds(1000)
        assert first >= 0 and end <= 1000
        assert not part.percent or all(abs(one or 0) <= 100 for one in (part.low, part.high))


# YAML that users write, and settings on the command line.


def yaml_examples(*texts: str | dict[str, Any]) -> Callable[[], list[Files]]:
    return lambda: [
        {"mine.yaml": (text if isinstance(text, str) else yaml.safe_dump(text, sort_keys=False)).encode()}
        for text in texts
    ]


def check_yaml(files: Files, made: Any) -> None:
    content = files["mine.yaml"]
    assert len(content) <= 1_000_000
    text = content.decode()
    try:
        documents = list(yaml.compose_all(text, yaml.SafeLoader))  # PyYAML's own parser, not libyaml's
    except (yaml.YAMLError, RecursionError):
        documents = []
    assert len(documents) <= 1
    assert _count_values(made) <= 20_000


def _count_values(node: Any, depth: int = 0) -> int:
    assert depth <= 60
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list | tuple | set) else ()
    return 1 + sum(_count_values(one, depth + 1) for one in inner)


PATTERN = "hybrid_override_pattern"
SIZES = ("hidden_size", "num_attention_heads", "n_routed_experts", "vocab_size")


def check_architecture(files: Files, made: dict[str, Any]) -> None:
    assert all(isinstance(name, str) for name in made)
    assert all(is_count(made[name]) for name in SIZES if name in made)
    assert made.get(PATTERN) is None or set(made[PATTERN]) <= set("ME*-")


def compose_sft(choice: str, overrides: list[str]) -> dict[str, Any]:
    """Compose and validate, as a run does before any artifact is known."""
    config = composed("sft", choice, overrides)
    values = resolve(config.tree, lambda role, field: "x")
    validate(SFTConfig, values, config.origins)
    return values


SECTIONS = {"run", "engine", "model", "data_prep", "train", "optimizer", "scheduler", "checkpoint", "logger", "lora"}


def check_config(files: Files, made: dict[str, Any]) -> None:
    assert set(made) <= SECTIONS
    for name in ("train_iters", "micro_batch_size", "global_batch_size"):
        number = unquoted(made["train"][name])
        assert number is None or (is_count(number) and number > 0)
    rate = unquoted(made["optimizer"]["lr"])
    assert is_number(rate) and rate > 0
    assert is_count(unquoted(made["run"]["seed"]))


def check_override(files: Files, made: dict[str, Any]) -> None:
    check_config(files, made)
    assert word_of(files).partition("=")[0].strip("+~ /")


KEYS = ("train.train_iters", "optimizer.lr", "defaults", "_self_", "engine", "run", "model", "run.home",
        "override /engine")  # fmt: skip
HYDRA_KEYS = ("train.train_iters", "optimizer.lr", "run.seed", "engine", "engine.name", "data_prep.source", "defaults",
              "")  # fmt: skip
HYDRA_VALUES = (
    "1", "-1", "1e400", "nan", "null", "[1,2", "{a:b}", "${oc.env:HOME}", "${x}", "a,b", "range(1,9)", "'", "\\",
    "glob(*)", "[[[[1]]]]", "sort(3,1)", "x" * 300, "\u202e", "???", "a b", "${now:%Y}", "1,2", "int('a')",
)  # fmt: skip


def damage_override(files: Files, random: Random) -> Files:
    """An override in Hydra's own grammar, or nearly."""
    key = random.choice(("", "", "+", "++", "~", "+++")) + random.choice(HYDRA_KEYS)
    return {WORD: (key + random.choice(("=", "=", "==", "", "@a=", ":")) + random.choice(HYDRA_VALUES)).encode()}


EXPECTATIONS = {
    "title": "a run",
    "when": {"run.family": "super3"},
    "expectations": [
        {"id": "final-loss", "what": "training loss at the end", "metric": "loss", "how": "last", "window": 5,
         "at_step": 50, "pass": {"at_least": 1.2, "at_most": 1.8}, "watch": {"at_most": 2.2}, "remedy": "look"},
        {"id": "oom", "what": "lines about memory", "line": "out of memory", "how": "count", "pass": {"at_most": 0},
         "remedy": "x"},
    ],
}  # fmt: skip


def check_expectations(files: Files, made: Any) -> None:
    found = yaml.load(files["mine.yaml"], YAML_LOADER)["expectations"]
    assert len({one["id"] for one in found}) == len(found)
    for limits in (limits for one in found for limits in (one.get("pass"), one.get("watch")) if limits):
        low, high = (unquoted(limits.get(end)) for end in ("at_least", "at_most"))
        assert all(bound is None or is_number(bound) for bound in (low, high))
        assert low is None or high is None or low <= high


# Descriptions of machines: env.toml, and the files of --machine.

SLURM = b"""[base]
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
LOCAL = b"""[mine]
executor = "local"
home = '/data/store'
setup_lines = ['module load cuda']
set = {run.seed = 1}
"""
SKY = b"[mine]\nexecutor = 'skypilot'\naccelerators = 'H100:8'\ncloud = 'aws'\nfile_mounts = {'/a' = 's3://b'}\n"
ENV_WORDS = ("executor", "extends", "slurm", "mine", "time", "mounts", "env_vars", "[mine]\n", "a\nb", "--output=x")
EXECUTORS = ("local", "docker", "slurm", "skypilot", "dgxcloud", "lepton", "kubeflow")
MACHINE = {
    "python": "3.12", "nodes": 8, "processes": 64, "gpus": {"name": "H100", "count": 8, "memory_gb": 80},
    "memory_gb": 2000, "free_disk_gb": 20000, "packages": {"torch": "2.9.0", "megatron-core": "0.19.2"},
}  # fmt: skip


def read_profile(folder: Path, files: Files) -> Loaded:
    with patch.dict(os.environ, {VARIABLE: str(folder / "env.toml")}):
        loaded = load_profile("mine")
    assert all(isinstance(name, str) for name in profile_names(read_tables(folder / "env.toml")))
    assert loaded.profile.processes_per_node >= 1
    return loaded


def check_profile(files: Files, made: Loaded) -> None:
    tables = tomllib.loads(files["env.toml"].decode("utf-8-sig"))
    chain, name = list[dict[str, Any]](), "mine"
    while name is not None:
        assert len(chain) < len(tables), "extends leads in a circle"
        chain.append(tables[name])
        name = tables[name].get("extends")
    values: dict[str, Any] = {}
    for table in reversed(chain):
        values |= table
    assert values.get("executor", "local") in EXECUTORS
    for key, least in (("nodes", 1), ("nproc_per_node", 1), ("gpus_per_node", 0), ("signal_lead", 1)):
        number = unquoted(values.get(key, 1))
        assert is_count(number) and number >= least
    for text in _texts(made.profile.model_dump(exclude={"set"})):
        assert not {"\n", "\r", "\0"} & set(text), "two lines in a script"


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for one in inner for text in _texts(one)]


def machine_files() -> list[Files]:
    toml = b'processes = 4\nmemory_gb = 32\n[gpus]\nname = "H200"\ncount = 4\n'
    return [{"machine.yaml": yaml.safe_dump(MACHINE).encode()}, {"machine.toml": toml}]


def check_machine(files: Files, made: Machine) -> None:
    ((name, content),) = files.items()
    said = tomllib.loads(content.decode()) if name.endswith(".toml") else yaml.safe_load(content.decode())
    assert is_count(unquoted(said["processes"])) and made.processes == unquoted(said["processes"]) > 0
    assert is_count(unquoted(said.get("nodes", 1))) and made.nodes > 0 and made.processes_per_node >= 1
    assert all(is_number(unquoted(said.get(key, 1))) for key in ("memory_gb", "free_disk_gb"))
    if (gpus := said.get("gpus")) is not None:
        assert is_count(unquoted(gpus["count"])) and 1 <= len(made.gpus) <= 1024
        assert is_number(unquoted(gpus.get("memory_gb", 1)))


PARSERS = {
    "reference": Parser(
        word_examples("super3-sft-model:v2", "sft:best", "art://sft-data:latest", "super3/sft/model:v2",
                      "ModelArtifact-sft:3"),
        read_reference, check_reference, (":", "/", "v", "latest", "sft", "art://", "SFTDataArtifact-sft"),
        on_disk=False, share=4,
    ),
    "address": Parser(
        word_examples("hf://org/name", "hf://models/org/name@v2", "megatron:./iter_0002000", "super3-sft-model"),
        lambda folder, files: parse_outside(word_of(files)), check_address,
        ("hf://", "@", "/", "megatron:", "..", "models/", "~"), on_disk=False, share=4,
    ),
    "gpus": Parser(
        word_examples("64xH100", "H200", "8 x RTX 4090", "128xGB200", "16"), read_gpus, check_gpus,
        ("x", "H100", "0", "99999999999", *DEVICES), on_disk=False, share=4,
    ),
    "slice": Parser(
        word_examples("train[1024:]", "train[:10%]", "train[-1024:]", "test", "a[5%:9%]"),
        lambda folder, files: parse_split("hf://org/name", word_of(files)), check_slice,
        ("[", "]", ":", "%", "-", "1024"), on_disk=False, share=4,
    ),
    "yaml": Parser(
        yaml_examples({"a": {"b": [1, 2.5, True, None, "x"]}, "c": "text", "d": [{"e": 1}, {"e": 2}]},
                      "base: &x {a: 1}\nmore:\n  <<: *x\n  b: 'y'\n"),
        lambda folder, files: parsed(folder / "mine.yaml", read_text(folder / "mine.yaml")), check_yaml,
    ),
    "architecture": Parser(
        yaml_examples({"hidden_size": 64, "num_attention_heads": 4, PATTERN: "ME*-", "n_routed_experts": 4,
                       "vocab_size": 512}),
        lambda folder, files: load_architecture(str(folder / "mine.yaml"), {}), check_architecture,
        (PATTERN, "like", "ME", *SIZES),
    ),
    "config": Parser(
        yaml_examples("defaults: [tiny, _self_]\ntrain: {train_iters: 20}\noptimizer:\n  lr: 0.001\n",
                      "defaults: [default, _self_]\ndata_prep:\n  source: chats.jsonl\nrun: {seed: 3}\n"),
        lambda folder, files: compose_sft(str(folder / "mine.yaml"), []), check_config, KEYS, seconds=20, share=0.1,
    ),
    "override": Parser(
        word_examples("train.train_iters=20", "optimizer.lr=1e-3", "engine=transformers", "run.seed=3",
                      "++run.home='a b'", "data_prep.source=[a.jsonl,'b c.jsonl']"),
        lambda folder, files: compose_sft("tiny", [word_of(files)]), check_override, (*KEYS, "=", "+", "~", "["),
        damage_override, on_disk=False, seconds=20, share=0.1,
    ),
    "expectations": Parser(
        yaml_examples(EXPECTATIONS), lambda folder, files: read_expectations(folder / "mine.yaml"), check_expectations,
        ("metric", "line", "file", "last", "loss", "at_most"),
    ),
    "env_toml": Parser(
        lambda: [{"env.toml": one} for one in (SLURM, LOCAL, SKY)], read_profile, check_profile, ENV_WORDS
    ),
    "machine": Parser(
        machine_files, lambda folder, files: read_machine(folder / next(iter(files), "machine.yaml")),
        check_machine, ("gpus", "processes", "3.12"),
    ),
}  # fmt: skip
