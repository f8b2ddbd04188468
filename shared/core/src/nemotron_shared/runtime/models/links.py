"""A folder of a stranger's is what lies in it: a link that leads out would bring in other files of whoever uses it."""

import os
from pathlib import Path

from nemotron_shared.errors import UserError, printable

MOST_FILES = 100_000
"""Far more than any model has: looking for links comes to an end."""


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
    """Refuse a folder with such a link in it, or in what lies below it; hidden folders belong to no model.

    Raises:
        UserError: naming the link, or that there is no end of files.
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
