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
    target, allowed = path.resolve(), [folder.resolve()]
    if folder.resolve().parent.name == "snapshots":  # models--org--name/snapshots/<commit>, beside it blobs/
        allowed.append(folder.resolve().parent.parent / "blobs")
    if not any(target.is_relative_to(place) for place in allowed):
        what = f"{printable(str(path))}: a link out of the folder, to {printable(str(target))}"
        raise UserError(what, "copy the file into the folder")


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
