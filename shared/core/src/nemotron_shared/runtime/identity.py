"""Who made a result, from what, and with which code: the basis of reuse and of lineage."""

import importlib.metadata
import importlib.util
import platform
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

from nemotron_shared.artifacts import Producer
from nemotron_shared.digest import file_digest, json_digest, tree_files

ROOMS = ("nemotron_shared", "nemotron_data", "nemotron_engines")
RECORDED_PACKAGES = (
    "torch", "transformers", "trl", "lm-eval", "tokenizers", "numpy", "pyarrow", "megatron-core", "megatron-bridge",
    "nemo-automodel", "nemo-evaluator", "vllm", "mamba-ssm", "causal-conv1d",
)  # fmt: skip


@cache
def code_digest(stage_directory: Path) -> str:
    """Digest of the source files of a stage and of the shared package, without tests and presentation."""
    found = (importlib.util.find_spec(room) for room in ROOMS)
    rooms = [Path(spec.origin).parent for spec in found if spec and spec.origin]
    files = {
        f"{root.name}/{path.relative_to(root).as_posix()}": file_digest(path)
        for root in (*rooms, stage_directory)
        for path in tree_files(root)
        if _makes_results(path.relative_to(root))
    }
    return json_digest(files)


def _makes_results(path: Path) -> bool:
    if {"tests", "build"} & set(path.parts):
        return False
    return path.suffix == ".py" or path.parent.name == "architectures"


def producer(stage: str, verb: str, stage_directory: Path, config_digest: str) -> Producer:
    """The `producer` entry of a manifest."""
    return Producer(
        stage=stage,
        verb=verb,
        stage_version=package_version(f"nemotron-{stage}") or "not installed",
        shared_version=package_version("nemotron-shared") or "not installed",
        config_digest=config_digest,
        code_digest=code_digest(stage_directory),
        git=git_commit(stage_directory),
        command=shlex.join(["python", "-m", f"stages.{stage}.{verb}", *sys.argv[1:]]),
        environment=environment(),
    )


def environment() -> dict[str, str]:
    """Versions of what computed the result."""
    versions = {name: package_version(name) for name in RECORDED_PACKAGES}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: version for name, version in versions.items() if version},
    }


def package_version(name: str) -> str | None:
    """Version of an installed distribution, None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def ask_git(directory: Path) -> subprocess.Popen[str] | None:
    """Begin to ask for the commit; None where there is no git. Called before the work, it costs no time after it."""
    command = ["git", "-C", str(directory), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except FileNotFoundError:
        return None


@cache
def git_commit(directory: Path) -> str | None:
    """Commit of the checkout that holds `directory`, with `-dirty` after it; None outside one."""
    git = ask_git(directory)
    return (git.communicate()[0].strip() or None) if git else None
