"""The files of a folder or a glob, on disk or in a store.

    local_paths(Path("corpus"))                # [Path("corpus/a.jsonl"), Path("corpus/more/b.jsonl")]
    walk("s3://bucket/more/*.jsonl.zst")       # [InputFile("s3://bucket/more/c.jsonl.zst", ...)]

Names that begin with a dot are left out. Nothing else is: links that lead nowhere and pipes are errors.
"""

import os
import re
from collections.abc import Iterable
from glob import glob, has_magic
from pathlib import Path
from typing import Any

from nemotron_data.sources.input_file import InputFile, file_at, file_system, format_of, reported
from nemotron_shared.system.errors import UserError, did_you_mean
from nemotron_shared.system.redaction import redact

DEAD_LINK, BRING_BACK = "a link that leads nowhere", "remove it, or bring its file back"
NO_FILE = "not a regular file"


def walk(url: str, commit: str | None = None) -> list[InputFile]:
    """Files of a URL that names a file, a folder (recursive, without hidden ones) or a glob, sorted by path.

    Raises:
        UserError: nothing found, or the service refuses or cannot be reached.
    """
    with reported(url):
        system, path = file_system(url)
        if system.isfile(path):
            return [file_at(url, system.info(path), commit)]
        folder = not has_magic(path) and system.isdir(path)
        list_files = system.find if folder else system.glob
        found = list_files(path, detail=True)
        files = [found[name] for name in sorted(found) if _is_visible_file(name, found[name], path)]
        if files:
            return [file_at(url, info, commit) for info in files]
        parent, _, name = path.rstrip("/").rpartition("/")
        try:
            beside = [entry.rstrip("/").rpartition("/")[2] for entry in system.ls(parent, detail=False)]
        except FileNotFoundError:
            beside = []
        what = "an empty folder" if folder else "no such file"
        raise UserError(f"{redact(url)}: {what}", did_you_mean(name, beside) or "check the path")


def _is_visible_file(name: str, info: dict[str, Any], asked: str) -> bool:
    """Whether a file is visible.

    Names are hidden by a leading dot, unless the requested path has it; a name that ends in "/" marks a folder in a
    store.
    """
    if info["type"] != "file" or name.endswith("/"):
        return False
    fixed = re.split(r"[*?\[]", asked)[0].rpartition("/")[0] if has_magic(asked) else asked
    return "/." in asked[len(fixed) :] or "/." not in name[len(fixed) :]


def local_paths(path: Path) -> list[Path]:
    """Files that a local file, folder or glob names, sorted; raises `UserError` if nothing is found."""
    with reported(str(path)):
        if path.is_file():
            return [path]
        if path.is_dir():
            found = sorted(_tree(path, set()), key=str)
            if not found:
                raise UserError(f"{path}: an empty folder", "name a folder with files in it")
            return found
        # not Path.glob: it refuses absolute patterns and finds hidden files
        matches = [path] if path.exists() else map(Path, sorted(glob(str(path), recursive=True)))  # noqa: PTH207
        files = [match for match in matches if match.is_file()]
    if not files and path.is_symlink():
        raise UserError(f"{path}: {DEAD_LINK}", BRING_BACK)
    if not files and path.exists():
        raise UserError(f"{path}: {NO_FILE}", "name a file, a folder or a glob")
    if not files:
        # the remedy is the name nearest to the first part of the path that does not exist
        missing = next((part for part in reversed(path.absolute().parents) if not part.exists()), path.absolute())
        beside = (entry.name for entry in missing.parent.iterdir()) if missing.parent.is_dir() else ()
        above = f"{missing.parent} holds no '{missing.name}'" if missing != path.absolute() else "check the path"
        remedy = did_you_mean(missing.name, beside) or above
        raise UserError(f"{path}: no such file", remedy)
    return files


def _tree(folder: Path, above: set[Path]) -> Iterable[Path]:
    """Visible files below a folder, following links. Nothing is skipped silently: dead links and pipes are errors."""
    real = folder.resolve()
    if real in above:
        raise UserError(f"{folder}: a link to a folder that contains it", "remove the link")
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            place = Path(entry.path)
            if entry.is_dir():
                yield from _tree(place, above | {real})
            elif entry.is_file():
                yield place
            else:
                raise UserError(f"{place}: {NO_FILE if place.exists() else DEAD_LINK}", BRING_BACK)


def not_mixed(folder: str, files: list[InputFile]) -> list[InputFile]:
    """Return the files of a folder unchanged; raises `UserError` if it has both rows and text documents."""
    forms = [format_of(file.path) for file in files]
    if len({form.content == "text" for form in forms}) == 2:
        rows = next(form.ending for form in forms if form.content != "text")
        what = f"name what you mean: '{folder.rstrip('/')}/**/*{rows}'"
        raise UserError(f"{folder}: holds both rows and text documents", what)
    return files
