"""Provenance of a result: commit, command, and versions of the stage and of its libraries."""

import importlib.metadata
import platform
import shlex
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from nemotron_shared.artifacts import Producer

RECORDED_PACKAGES = (
    "torch", "transformers", "trl", "lm-eval", "tokenizers", "numpy", "pyarrow", "megatron-core", "megatron-bridge",
    "nemo-automodel", "nemo-evaluator", "vllm", "mamba-ssm", "causal-conv1d",
)  # fmt: skip

TRAVELLED = Path(__file__).resolve().parents[2] / "COMMIT"


def producer(
    stage: str, verb: str, stage_directory: Path, config_digest: str, code_digest: str, words: Sequence[str]
) -> Producer:
    """Build the `producer` entry of a manifest; `words` are those of the command line."""
    return Producer(
        stage=stage,
        verb=verb,
        stage_version=package_version(f"nemotron-{stage}") or "not installed",
        shared_version=package_version("nemotron-shared") or "not installed",
        config_digest=config_digest,
        code_digest=code_digest,
        git=git_commit(stage_directory),
        command=shlex.join(["python", "-m", f"stages.{stage}.{verb}", *words]),
        environment=environment(),
    )


def environment() -> dict[str, str]:
    """Versions of the software that computed the result."""
    versions = {name: package_version(name) for name in RECORDED_PACKAGES}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: version for name, version in versions.items() if version},
    }


def package_version(name: str) -> str | None:
    """Version of an installed distribution, None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def ask_git(directory: Path) -> subprocess.Popen[str] | None:
    """Start asking git for the commit, so that it takes no time after the work; None without git."""
    command = ["git", "-C", str(directory), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except FileNotFoundError:
        return None


@cache
def git_commit(directory: Path) -> str | None:
    """Commit of the checkout that contains `directory`, with `-dirty` appended if it has changes; None outside one.

    Code that travels with a job brings its commit along, because it may be unpacked inside another checkout.
    """
    if TRAVELLED.is_file():
        return TRAVELLED.read_text(encoding="utf-8").strip() or None
    git = ask_git(directory)
    return (git.communicate()[0].strip() or None) if git else None
