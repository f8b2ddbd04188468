"""Inputs besides packages: models and tokenizers from the hub, and local files and folders.

A material is a subfolder such as `models/hf-org--name`, with the files that belong in it. Existing files with the
expected content are kept.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from nemotron_cluster.airgap.uv import SCRATCH
from nemotron_shared.digest import file_digest, tree_files
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.models.hub import fetch, is_as_promised, look_at
from nemotron_shared.runtime.models.references import HubModel, artifact_name, parse_outside

PARTIAL = ".partial"


@dataclass(frozen=True)
class Promise:
    """Expected size and content of a file.

    Attributes:
        is_right: checks the content; None if no digest is known: then a file of the right size is accepted.
    """

    bytes: int
    is_right: Callable[[Path], bool] | None = None

    def kept_by(self, path: Path) -> bool:
        """Whether the file at `path` is as expected."""
        there = path.is_file() and path.stat().st_size == self.bytes
        return there and (self.is_right is None or self.is_right(path))


@dataclass(frozen=True)
class Material:
    """A model, tokenizer or data set.

    Attributes:
        place: its folder: "models/hf-org--name".
        origin: as the user wrote it.
        files: the files that belong in the folder.
        bring: function that puts these files into the folder.
    """

    place: str
    origin: str
    files: dict[str, Promise]
    bring: Callable[[list[str], Path], None]

    @property
    def bytes(self) -> int:
        """Total size."""
        return sum(file.bytes for file in self.files.values())

    def missing(self, folder: Path) -> list[str]:
        """Files that are missing or not as expected."""
        return [name for name, file in self.files.items() if not file.kept_by(folder / self.place / name)]


def model(text: str, *, weights: bool, trusted: bool) -> Material:
    """A model, or only its tokenizer, from the hub or from a folder.

    Raises:
        UserError: not found, or not loadable with this project.
    """
    kind = "models" if weights else "tokenizers"
    outside = parse_outside(text)
    if outside is None:
        folder = Path(text).expanduser()
        wanted = "config.json" if weights else "tokenizer.json"
        if not (folder / wanted).is_file():
            raise UserError(
                f"{text}: no folder with a {wanted}", "write hf://organisation/name for a repository of the hub"
            )
        return local(folder, kind)
    if not isinstance(outside, HubModel):
        raise UserError(f"{text}: a checkpoint of Megatron is no model to fetch", "copy its folder with --data")
    look = look_at(outside, weights=weights, trusted=trusted)

    def bring(names: list[str], into: Path) -> None:
        with TemporaryDirectory(dir=into, prefix=SCRATCH) as scratch:
            fetch(look, Path(scratch))
            for name in names:
                if (linked := Path(scratch, name)).is_symlink():  # the hub's cache is on another disk
                    copy(linked.resolve(), into / name)
                else:
                    linked.replace(into / name)

    def promise(name: str) -> Promise:
        # use the hub's digest, not one of the cached file
        return Promise(look.artifact.manifest.files[name].bytes, partial(is_as_promised, expected=look.expected[name]))

    promises = {name: promise(name) for name in look.artifact.manifest.files}
    return Material(f"{kind}/{outside.name()}", text, promises, bring)


def local(path: Path, kind: str) -> Material:
    """Copy a file or a folder of this machine.

    Raises:
        UserError: missing or empty.
    """
    if not path.exists():
        raise UserError(f"{path}: no such file or folder", "check the path")
    files = {path.name: path} if path.is_file() else {str(one.relative_to(path)): one for one in tree_files(path)}
    if not files:
        raise UserError(f"{path}: an empty folder", "check the path")

    def bring(names: list[str], into: Path) -> None:
        for name in names:
            copy(files[name], into / name)

    place = kind if path.is_file() else f"{kind}/{artifact_name(path.resolve().name)}"
    promises = {name: Promise(one.stat().st_size, partial(_same, one)) for name, one in files.items()}
    return Material(place, str(path), promises, bring)


def _same(source: Path, copied: Path) -> bool:
    return file_digest(source) == file_digest(copied)


def copy(source: Path, target: Path) -> None:
    """Copy a file, giving it its final name only when complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    beginning = target.with_name(target.name + PARTIAL)
    shutil.copyfile(source, beginning)
    beginning.replace(target)
