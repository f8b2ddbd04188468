"""A folder of a stranger's is what lies in it: a link that leads out would bring in other files of whoever uses it."""

import os
from pathlib import Path

from nemotron_shared.errors import UserError, printable


def require_inside(path: Path, folder: Path) -> None:
    """Refuse a link to anywhere but the folder itself, or the repository of a hub's cache that the folder is in.

    Raises:
        UserError: naming the link.
    """
    target = path.resolve()
    if not target.is_relative_to(folder.resolve()) and not is_blob(path, folder):
        what = f"{printable(str(path))}: a link out of the folder, to {printable(str(target))}"
        raise UserError(what, "copy the file into the folder")


def is_blob(path: Path, folder: Path) -> bool:
    """Whether a file of a folder lies among the blobs of a hub's cache, which are named by content and never edited."""
    place = folder.resolve()  # models--org--name/snapshots/<commit>, beside it blobs/
    return place.parent.name == "snapshots" and path.resolve().is_relative_to(place.parent.parent / "blobs")


def require_own_files(folder: Path) -> None:
    """Refuse a folder with such a link at its top, where models and tokenizers keep their files.

    Raises:
        UserError: naming the link.
    """
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_symlink():
            require_inside(Path(entry.path), folder)
