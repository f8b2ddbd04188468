"""The NeMo-RL versions that the recipes are written for: container, commit, and what differs between them."""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

REPOSITORY = "https://github.com/NVIDIA-NeMo/RL"


@dataclass(frozen=True)
class Version:
    """One version.

    Attributes:
        commit: of the source that the table was made of.
        package: `nemo_rl.__version__` without what follows `+`.
        container: the image that NVIDIA's guide for the recipe names.
        data_keys: "nested" is `data.train.data_path`, "flat" is `data.train_jsonl_fpath`.
        scripts: program by environment; `sft` is the one of fine-tuning.
        kinds_of_truncation: truncated importance sampling is one of several kinds, and is named.
    """

    commit: str
    package: str
    container: str
    data_keys: Literal["nested", "flat"]
    scripts: Mapping[str, str]
    kinds_of_truncation: bool


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
    ),
    "nano-v3": Version(
        commit="823fcc90428eb18e00cf45b3d73069d3ea6dc988",
        package="0.5.0rc0",
        container="nemo-rl:v0.4.0.nemotron_3_nano",
        data_keys="flat",
        scripts={"nemo_gym": "examples/nemo_gym/run_grpo_nemo_gym.py"},
        kinds_of_truncation=False,
    ),
}


def commit_of(checkout: Path) -> str | None:
    """The commit that is checked out; None where the folder is no git checkout or git is not installed."""
    if not (checkout / ".git").exists():
        return None
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def version_of(checkout: Path) -> str | None:
    """`__version__` as the source writes it, without importing it; None where there is no such file."""
    file = checkout / "nemo_rl" / "package_info.py"
    if not file.is_file():
        return None
    found = dict(re.findall(r'^(MAJOR|MINOR|PATCH|PRE_RELEASE) = "?(\w*)"?', file.read_text(encoding="utf-8"), re.M))
    return "{MAJOR}.{MINOR}.{PATCH}{PRE_RELEASE}".format(**{"PRE_RELEASE": "", **found})
