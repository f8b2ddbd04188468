"""Resolve the packages of an environment from uv.lock, for the target machine, with URLs, sizes and digests.

    packages, lock = resolve(root, Target("3.11", "x86_64"), Wanted(("nemotron-sft",), ("kernels",)))
    packages[0]     Package("accelerate", "1.15.0", "wheel", "accelerate-1.15.0-py3-none-any.whl", ...)

uv exports the lock as a `pylock.toml`, the standard format, and `packaging` selects from it what fits the target. Tags
and markers are evaluated for the target, not for the machine that downloads.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from packaging.markers import Environment
from packaging.pylock import Package as Entry
from packaging.pylock import PackageDirectory, PackageSdist, PackageWheel, Pylock, PylockSelectError
from packaging.tags import Tag, compatible_tags, cpython_tags

from nemotron_shared.machine.environments import SUPPORTED
from nemotron_shared.system.atomic import write_text
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.redaction import redact

LOCK = "pylock.toml"
PLATFORMS = ("x86_64", "aarch64")
GLIBC = 28
"""Accept wheels for glibc up to 2.28, which RHEL 8 and anything newer provides."""
OLDEST_GLIBC = {"x86_64": 5, "aarch64": 17}
LEGACY = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}
"""Names of glibc versions in tags of older wheels."""
COMPILED = ("causal-conv1d", "mamba-ssm")
"""Packages with CUDA kernels that are only available as sources. They are compiled where the CUDA toolkit is."""
CUDA_12 = "torch==2.10.0"
"""The last torch on PyPI for CUDA 12 (12.8); versions from 2.11 on require CUDA 13."""
TRITON_12 = "triton==3.6.0 ; sys_platform == 'linux'"
"""The triton that this torch requires, even if one of our extras pins that of a newer torch."""
SCRATCH = ".scratch-"
"""Prefix of temporary build folders."""
SHOWN_LINES = 20
"""Number of output lines to show if uv fails: the last ones tell why."""
Kind = Literal["wheel", "sdist", "compiled", "member"]


def find_uv() -> str:
    """Find uv, preferably the one of this environment.

    Raises:
        UserError: uv is not installed.
    """
    own = Path(sys.executable).with_name("uv")
    found = str(own) if own.is_file() else shutil.which("uv")
    if found is None:
        raise UserError("`uv` is not installed", "install it: python3 -m pip install uv")
    return found


def uv(words: Sequence[str | Path], failed: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
    """Run uv.

    Args:
        failed: the start of the error message: what could not be done.

    Raises:
        UserError: uv failed; the message ends with its output.
    """
    variables = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"} | dict(env or {})
    command = [find_uv(), "--color", "never", *map(str, words)]
    answer = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    if answer.returncode:
        output = "\n    ".join(redact(answer.stderr).strip().splitlines()[-SHOWN_LINES:])
        raise UserError(f"{failed}: uv ended with exit code {answer.returncode}", f"it says:\n    {output}")


def remove_scratch(folder: Path) -> None:
    """Remove leftovers of builds that were killed. The caller must hold the lock."""
    for left in folder.glob(f"{SCRATCH}*"):
        shutil.rmtree(left, ignore_errors=True)


@dataclass(frozen=True)
class Target:
    """The Linux machine of an environment: its Python and its processor."""

    python: str
    platform: str

    def __post_init__(self) -> None:
        if self.python not in SUPPORTED:
            what = f"the packages are not made for Python {self.python}"
            raise UserError(what, f"there are: {', '.join(SUPPORTED)}")
        if self.platform not in PLATFORMS:
            what = f"CUDA packages do not exist for the platform {self.platform}"
            raise UserError(what, f"there are: {', '.join(PLATFORMS)}")

    def tags(self) -> list[Tag]:
        """Tags of compatible wheels, best first."""
        version = tuple(map(int, self.python.split(".")))
        platforms = []
        for minor in range(GLIBC, OLDEST_GLIBC[self.platform] - 1, -1):
            platforms.append(f"manylinux_2_{minor}_{self.platform}")
            platforms += [f"{LEGACY[minor]}_{self.platform}"] if minor in LEGACY else []
        platforms.append(f"linux_{self.platform}")
        interpreter = f"cp{version[0]}{version[1]}"
        return [*cpython_tags(version, platforms=platforms), *compatible_tags(version, interpreter, platforms)]

    def markers(self) -> Environment:
        """Values of the variables in a requirement's marker."""
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.platform,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }


@dataclass(frozen=True)
class Wanted:
    """What to install in an environment.

    Attributes:
        packages: members of the workspace.
        extras: extras of them.
        cuda: 13 is what uv.lock contains; for 12 the lock is resolved again, as close to uv.lock as possible.
        sources_only: no wheels, for an existing environment that lacks only the compiled packages.
    """

    packages: tuple[str, ...]
    extras: tuple[str, ...] = ()
    cuda: Literal["12", "13"] = "13"
    sources_only: bool = False


@dataclass(frozen=True)
class Package:
    """A package: a wheel to fetch, sources to build here ("sdist") or on the target ("compiled"), or our own code.

    Attributes:
        filename, url, sha256, bytes: of the file to fetch; empty for a workspace member.
        directory: source folder of a member.
    """

    name: str
    version: str
    kind: Kind
    filename: str = ""
    url: str = ""
    sha256: str = ""
    bytes: int | None = 0
    directory: Path | None = None


def resolve(root: Path, target: Target, wanted: Wanted) -> tuple[list[Package], str]:
    """The packages, and the text of their lock.

    Raises:
        UserError: unknown member or extra, uv.lock is out of date, or a package does not support the target.
    """
    require_cuda(wanted.cuda, target)
    with TemporaryDirectory() as scratch:
        lock = Path(scratch) / LOCK
        command = ["export", "--quiet", "--locked", "--no-dev", "--format", LOCK, "--output-file", lock]
        command += [word for name in wanted.packages for word in ("--package", name)]
        command += [word for extra in wanted.extras for word in ("--extra", extra)]
        uv(command, "the packages cannot be read from uv.lock", cwd=root)
        if wanted.cuda == "12":
            _resolve_cuda_12(root, target, wanted, lock)
        text = lock.read_text(encoding="utf-8")
        try:
            chosen = Pylock.from_dict(tomllib.loads(text)).select(environment=target.markers(), tags=target.tags())
            found = [_package(lock.parent, entry, source) for entry, source in chosen]
        except PylockSelectError as error:
            what = f"for Python {target.python} on {target.platform}: {error}"
            raise UserError(
                what, "choose another Python with --python, or leave the extra out that needs it"
            ) from error
    if wanted.sources_only:
        found = [package for package in found if package.kind == "compiled"]
        if not found:
            raise UserError("nothing of this is compiled for CUDA", "name the extra that asks for it: --extra kernels")
    return found, text


def require_cuda(cuda: str, target: Target) -> None:
    """Require a torch for this CUDA version and processor.

    Raises:
        UserError: PyPI has no such torch.
    """
    if cuda == "12" and target.platform != "x86_64":
        what = f"torch for CUDA 12 is on the index for x86_64 only; for {target.platform} it is one without CUDA"
        raise UserError(what, "use a driver for CUDA 13, or NVIDIA's own container")


def _resolve_cuda_12(root: Path, target: Target, wanted: Wanted, lock: Path) -> None:
    """Resolve a lock with torch for CUDA 12, keeping locked versions wherever possible."""
    entries = tomllib.loads(lock.read_text(encoding="utf-8"))["packages"]
    members = {entry["name"]: entry["directory"]["path"] for entry in entries if "directory" in entry}
    extras = f"[{','.join(wanted.extras)}]" if wanted.extras else ""
    requested, limits, overrides = (lock.with_name(name) for name in ("requested.txt", "limits.txt", "overrides.txt"))
    # uv only warns about an extra that some of several members lack
    lines = [f"{name}{extras} @ {(lock.parent / members[name]).resolve().as_uri()}" for name in wanted.packages]
    write_text(requested, "\n".join(lines) + "\n")
    write_text(limits, CUDA_12 + "\n")
    write_text(overrides, TRITON_12 + "\n")
    words = ["pip", "compile", requested, "--quiet", "--constraints", limits, "--overrides", overrides]
    words += ["--python-version", target.python, "--python-platform", "x86_64-manylinux_2_28"]
    words += ["--format", LOCK, "--output-file", lock]
    uv(words, "the packages for CUDA 12 cannot be worked out", cwd=root)


def _package(base: Path, entry: Entry, source: object) -> Package:
    if isinstance(source, PackageDirectory):  # path relative to the lock
        directory = (base / source.path).resolve()
        about = tomllib.loads((directory / "pyproject.toml").read_text(encoding="utf-8"))
        return Package(entry.name, about["project"]["version"], "member", directory=directory)
    assert isinstance(source, PackageWheel | PackageSdist), f"{entry.name}: uv.lock has only indexes and members"
    kind: Kind = "wheel" if isinstance(source, PackageWheel) else "compiled" if entry.name in COMPILED else "sdist"
    sha256, url = source.hashes["sha256"], str(source.url)
    return Package(entry.name, str(entry.version), kind, source.filename, url, sha256, source.size)
