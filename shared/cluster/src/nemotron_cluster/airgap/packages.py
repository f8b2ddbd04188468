"""Resolve the packages of an environment from uv.lock, for the target, with URLs, sizes and digests.

    packages, lock = resolve(root, Target("3.11", "x86_64"), Wanted(("nemotron-sft",), ("kernels",)))
    packages[0]     Package("accelerate", "1.15.0", "wheel", file=File("accelerate-1.15.0-py3-none-any.whl", ...))

The lock is exported as a `pylock.toml`, the standard format.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from nemotron_cluster.airgap.target import Target
from nemotron_cluster.airgap.uv import uv
from nemotron_shared.atomic import write_text
from nemotron_shared.errors import UserError

LOCK = "pylock.toml"
COMPILED = ("causal-conv1d", "mamba-ssm")
"""Packages with CUDA kernels that are only available as sources. They are compiled where the CUDA toolkit is."""
CUDA_12 = "torch==2.10.0"
"""The last torch on PyPI for CUDA 12 (12.8); versions from 2.11 on require CUDA 13."""
TRITON_12 = "triton==3.6.0 ; sys_platform == 'linux'"
"""The triton that this torch requires, even if one of our extras pins that of a newer torch."""


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
class File:
    """A file on the package index."""

    name: str
    url: str
    sha256: str
    bytes: int | None


@dataclass(frozen=True)
class Package:
    """A package: a wheel to fetch, sources to build here ("sdist") or on the target ("compiled"), or our own code.

    Attributes:
        file: the file to fetch; None for a workspace member.
        directory: source folder of a member.
    """

    name: str
    version: str
    kind: Literal["wheel", "sdist", "compiled", "member"]
    file: File | None = None
    directory: Path | None = None

    @property
    def bytes(self) -> int:
        """Size of the download."""
        return (self.file.bytes or 0) if self.file else 0


def resolve(root: Path, target: Target, wanted: Wanted) -> tuple[list[Package], str]:
    """The packages, and the text of their lock.

    Raises:
        UserError: unknown member or extra, uv.lock is out of date, or a package does not support the target.
    """
    require_cuda(wanted.cuda, target)
    with TemporaryDirectory() as scratch:
        lock = Path(scratch) / LOCK
        command = ["export", "--quiet", "--locked", "--no-dev", "--format", LOCK, "--output-file", lock]
        for name in wanted.packages:
            command += ["--package", name]
        for extra in wanted.extras:
            command += ["--extra", extra]
        uv(command, "the packages cannot be read from uv.lock", cwd=root)
        if wanted.cuda == "12":
            _resolve_cuda_12(root, target, wanted, lock)
        text = lock.read_text(encoding="utf-8")
        entries = tomllib.loads(text)["packages"]
        found = [_package(lock.parent, target, entry) for entry in entries if target.fits(entry.get("marker"))]
    missing = [f"{each.name} {each.version}" for each in found if each.file is None and each.directory is None]
    if missing:
        raise UserError(
            f"for Python {target.python} on {target.platform} there is neither a wheel nor a source of: "
            f"{', '.join(missing)}",
            "choose another Python with --python, or leave the extra out that needs it",
        )
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
    members = {entry["name"]: entry["directory"]["path"] for entry in tomllib.loads(lock.read_text(encoding="utf-8"))
               ["packages"] if "directory" in entry}  # fmt: skip
    extras = f"[{','.join(wanted.extras)}]" if wanted.extras else ""
    asked, limits, overrides = (lock.with_name(name) for name in ("asked.txt", "limits.txt", "overrides.txt"))
    # uv only warns about an extra that some of several members lack
    lines = [f"{name}{extras} @ {(lock.parent / members[name]).resolve().as_uri()}" for name in wanted.packages]
    write_text(asked, "\n".join(lines) + "\n")
    write_text(limits, CUDA_12 + "\n")
    write_text(overrides, TRITON_12 + "\n")
    uv(
        ["pip", "compile", asked, "--quiet", "--constraints", limits, "--overrides", overrides, "--python-version",
         target.python, "--python-platform", "x86_64-manylinux_2_28", "--format", LOCK, "--output-file", lock],
        "the packages for CUDA 12 cannot be worked out",
        cwd=root,
    )  # fmt: skip


def _package(base: Path, target: Target, entry: dict[str, Any]) -> Package:
    name, version = entry["name"], entry.get("version", "")
    if "directory" in entry:  # path relative to the lock
        directory = (base / entry["directory"]["path"]).resolve()
        about = tomllib.loads((directory / "pyproject.toml").read_text(encoding="utf-8"))
        return Package(name, about["project"]["version"], "member", directory=directory)
    wheels = {_name(wheel): wheel for wheel in entry.get("wheels", ())}
    if best := target.best(wheels):
        return Package(name, version, "wheel", _file(wheels[best]))
    kind = "compiled" if name in COMPILED else "sdist"
    return Package(name, version, kind, _file(entry["sdist"]) if "sdist" in entry else None)


def _file(entry: dict[str, Any]) -> File:
    return File(_name(entry), entry["url"], entry["hashes"]["sha256"], entry.get("size"))


def _name(entry: dict[str, Any]) -> str:
    return entry.get("name") or unquote(PurePosixPath(urlsplit(entry["url"]).path).name)
