"""A folder of a stranger's is what lies in it: a link that leads out would bring in other files of whoever uses it."""

import os
from pathlib import Path

from nemotron_shared.errors import UserError, printable


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
    """Refuse a folder with such a link at its top, where models and tokenizers keep their files.

    Raises:
        UserError: naming the link.
    """
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_symlink():
            require_inside(Path(entry.path), folder)
