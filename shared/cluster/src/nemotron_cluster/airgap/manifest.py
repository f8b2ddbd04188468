"""The manifest of a folder: its target machine, and the SHA-256 of every file. It is written last: a folder without
it is incomplete.

{"python": "3.11", "platform": "x86_64", "packages": [...], "files": {"wheels/torch-....whl": {"sha256": ..., ...}}}
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from nemotron_shared.atomic import read_json, write_json
from nemotron_shared.digest import file_digest
from nemotron_shared.errors import UserError

NAME = "manifest.json"
READERS = 4


class Entry(BaseModel):
    """A file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: str
    bytes: int


class Locked(BaseModel):
    """A package, and its file in the folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    version: str
    kind: Literal["wheel", "sdist", "compiled", "member"]
    file: str


class Manifest(BaseModel):
    """The contents of a folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    python: str
    platform: str
    cuda: str
    packages: list[Locked]
    materials: dict[str, str]
    """Folders of models, tokenizers and data, with their origins."""
    files: dict[str, Entry]


def entries(folder: Path, names: list[str]) -> dict[str, Entry]:
    """Size and digest of the current files."""

    def look(name: str) -> Entry:
        return Entry(sha256=file_digest(folder / name), bytes=(folder / name).stat().st_size)

    with ThreadPoolExecutor(READERS) as pool:
        return dict(zip(names, pool.map(look, names), strict=True))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Declare a folder complete."""
    write_json(folder / NAME, manifest.model_dump())


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a fetched folder.

    Raises:
        UserError: missing or invalid manifest.
    """
    if not (folder / NAME).is_file():
        what = f"{folder} has no {NAME}: it is no folder of airgap fetch, or that has not ended"
        raise UserError(what, "where there is a network, run the command that makes it again")
    try:
        return Manifest.model_validate(read_json(folder / NAME))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{folder / NAME}: {where}: {first['msg']}", "bring the folder here once more") from error


def require_intact(folder: Path, manifest: Manifest) -> None:
    """Compare every file with the manifest.

    Raises:
        UserError: a file is missing or has changed.
    """

    def wrong(name: str) -> str | None:
        path, entry = folder / name, manifest.files[name]
        if not path.is_file():
            return f"{name} is missing"
        if (here := path.stat().st_size) != entry.bytes:
            return f"{name} has {here} bytes instead of {entry.bytes}"
        return None if file_digest(path) == entry.sha256 else f"{name} has another content"

    with ThreadPoolExecutor(READERS) as pool:
        found = [problem for problem in pool.map(wrong, manifest.files) if problem]
    if found:
        shown = "; ".join(found[:5]) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")
        raise UserError(f"{folder}: {shown}", "fetch again into the same folder, which repairs it, or copy it again")
