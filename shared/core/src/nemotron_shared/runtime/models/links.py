"""Refuse symlinks out of an untrusted folder: they would import other files of the user."""

import os
from pathlib import Path

from nemotron_shared.errors import UserError, printable

MOST_FILES = 100_000
"""Far more than any model has, to bound the search for links."""


def require_inside(path: Path, folder: Path) -> None:
    """Refuse a link out of the folder, unless it stays in the hub-cache repository the folder belongs to.

    Raises:
        UserError: with the link.
    """
    target = path.resolve()
    if not target.is_relative_to(folder.resolve()) and not is_blob(path, folder):
        what = f"{printable(str(path))}: a link out of the folder, to {printable(str(target))}"
        raise UserError(what, "copy the file into the folder")


def is_blob(path: Path, folder: Path) -> bool:
    """Whether a file is a blob in a hub's cache, which is named by content and never edited."""
    place = folder.resolve()  # models--org--name/snapshots/<commit>, next to models--org--name/blobs/
    return place.parent.name == "snapshots" and path.resolve().is_relative_to(place.parent.parent / "blobs")


def require_own_files(folder: Path) -> None:
    """Refuse a folder with such a link at any depth; hidden folders are not part of a model and are skipped.

    Raises:
        UserError: with the link, or because there are too many files.
    """
    seen = 0
    for here, folders, files in os.walk(folder):
        names = sorted(folders + files)
        if (seen := seen + len(names)) > MOST_FILES:
            what = f"{printable(str(folder))}: holds more than {MOST_FILES:,} files and folders"
            raise UserError(what, "give the folder of the model or tokenizer alone")
        for path in filter(Path.is_symlink, (Path(here) / name for name in names)):
            require_inside(path, folder)
        folders[:] = [name for name in folders if not name.startswith(".")]
