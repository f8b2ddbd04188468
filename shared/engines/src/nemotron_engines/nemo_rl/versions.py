"""The NeMo-RL versions that the recipes are written for, and NeMo-RL's configs that ours build on.

    VERSIONS["v0.7.0"].container
    load_bases("v0.7.0")["examples/configs/sft.yaml"].values     keys that our rules and estimates read
    load_base(checkout, "examples/configs/sft.yaml")             the whole config, from a checkout

`generate` writes the tables for `load_bases` from a checkout of each version.
"""

import hashlib
import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf

from nemotron_shared.config.overrides import nested
from nemotron_shared.system.errors import UserError

REPOSITORY = "https://github.com/NVIDIA-NeMo/RL"
TABLES = Path(__file__).parent / "tables"


@dataclass(frozen=True)
class Version:
    """A version of NeMo-RL.

    Attributes:
        commit: source commit of the table.
        package: `nemo_rl.__version__` without the part after `+`.
        container: image in NVIDIA's guide for the recipe.
        data_keys: "nested" is `data.train.data_path`, "flat" is `data.train_jsonl_fpath`.
        scripts: program by environment; `sft` is for fine-tuning.
        kinds_of_truncation: truncated importance sampling has several kinds, so the kind must be named.
        has_cispo: the loss has `use_cispo`.
    """

    commit: str
    package: str
    container: str
    data_keys: Literal["nested", "flat"]
    scripts: Mapping[str, str]
    kinds_of_truncation: bool
    has_cispo: bool


VERSIONS: dict[str, Version] = {
    "v0.7.0": Version(
        commit="81aa43dda4765b0429cf31dab44441e4e4383911",
        package="0.7.0",
        container="nemo-rl:v0.7.0",
        data_keys="nested",
        scripts={
            "math": "examples/run_grpo.py",
            "base": "examples/run_grpo.py",
            "nemo_gym": "examples/nemo_gym/run_grpo_nemo_gym.py",
            "sft": "examples/run_sft.py",
        },
        kinds_of_truncation=True,
        has_cispo=True,
    ),
    "nano-v3": Version(
        commit="823fcc90428eb18e00cf45b3d73069d3ea6dc988",
        package="0.5.0rc0",
        container="nemo-rl:v0.4.0.nemotron_3_nano",
        data_keys="flat",
        scripts={"nemo_gym": "examples/nemo_gym/run_grpo_nemo_gym.py"},
        kinds_of_truncation=False,
        has_cispo=False,
    ),
}


@dataclass(frozen=True)
class Base:
    """A config of NeMo-RL that recipes build on.

    Attributes:
        digest: digest of the whole config, to detect a changed file.
        values: part of the config, as a tree; a run reads the rest from the checkout.
    """

    algorithm: str
    digest: str
    values: dict[str, Any]


@cache
def load_bases(version: str) -> dict[str, Base]:
    """The configs of a version by their path in the checkout."""
    bases = json.loads((TABLES / f"{version}.json").read_text(encoding="utf-8"))
    return {path: Base(one["algorithm"], one["digest"], nested(one["values"])) for path, one in bases.items()}


def load_base(checkout: Path, path: str) -> dict[str, Any]:
    """A config of the checkout with everything it inherits; interpolations are not resolved.

    Raises:
        UserError: the file is missing.
    """
    file = checkout / path
    if not file.is_file():
        raise UserError(f"engine.base: {checkout} has no '{path}'", "choose another engine.base or engine.version")
    content = OmegaConf.to_container(_inherited(file), resolve=False)
    assert isinstance(content, dict)
    return {str(name): value for name, value in content.items()}


def _inherited(file: Path) -> DictConfig:
    own = OmegaConf.load(file)
    assert isinstance(own, DictConfig), f"{file} is not a mapping"
    parents = own.pop("defaults", [])
    whole = OmegaConf.create({})
    parents = [parents] if isinstance(parents, str) else parents
    for above in [*(_inherited(file.parent / str(parent)) for parent in parents), own]:
        # later files win; a section marked `_override_` replaces the inherited one instead of being merged
        plain: Any = OmegaConf.to_container(above)
        for name, section in plain.items():
            if isinstance(section, dict) and "_override_" in section and above[name].pop("_override_"):
                whole.pop(name, None)
        whole.merge_with(above)
    return whole


def digest_of(values: dict[str, Any]) -> str:
    """SHA-256 of a config, to compare a checkout's file with the one in the table."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def commit_of(checkout: Path) -> str | None:
    """The checked-out commit; None if the folder is not a git checkout or git is not installed."""
    if not (checkout / ".git").exists():
        return None
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def version_of(checkout: Path) -> str | None:
    """`__version__` from the source, without importing it; None if the file is missing."""
    file = checkout / "nemo_rl" / "package_info.py"
    if not file.is_file():
        return None
    found = dict(re.findall(r'^(MAJOR|MINOR|PATCH|PRE_RELEASE) = "?(\w*)"?', file.read_text(encoding="utf-8"), re.M))
    return "{MAJOR}.{MINOR}.{PATCH}{PRE_RELEASE}".format(**{"PRE_RELEASE": "", **found})
