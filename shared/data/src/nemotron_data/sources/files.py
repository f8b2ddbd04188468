"""The input files that paths name: local ones, those of stores, and those of data sets on the hub.

    files = expand(["corpus/", "s3://bucket/more/*.jsonl.zst"])
    files[0]                          # InputFile("corpus/a.jsonl", size=1048576, version="1763726400000000000")

Files of stores go through fsspec, those of the hub through its own libraries.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from nemotron_data.sources.hub import hub_files
from nemotron_data.sources.input_file import InputFile, format_of, is_remote, local_file
from nemotron_data.sources.listing import local_paths, not_mixed, walk
from nemotron_shared.system.console import say
from nemotron_shared.system.errors import UserError

SHOWN = 3


def expand(paths: Sequence[str | Path], *, subset: str | None = None, split: str | None = None) -> list[InputFile]:
    """Files that `paths` name, in order; a folder or glob gives its files sorted by path.

    Args:
        subset: the configuration of a hub data set, for `hf://` paths only.
        split: its split, likewise.

    Raises:
        UserError: a path names nothing, has an unknown extension or cannot be reached, a folder mixes rows and
            documents, or a file is named twice.
    """
    files = [file for path in paths for file in _files_at(os.fspath(path), subset, split)]
    for file in files:
        format_of(file.path)
    if len(files) > 1:
        _refuse_twice(files)
    return files


def _files_at(text: str, subset: str | None, split: str | None) -> list[InputFile]:
    if text.startswith("hf://"):
        return hub_files(text, subset=subset, split=split)
    if subset or split:
        key = "subset" if subset else "split"
        raise UserError(f"{text}: '{key}' only belongs to an hf:// path", f"leave '{key}' out and name the files")
    if is_remote(text):
        files = walk(text)
        folder = text not in {file.path for file in files} and not any(sign in text for sign in "*?[")
        return not_mixed(text, files) if folder else files
    path = Path(os.path.expanduser(text))  # noqa: PTH111 (Path's own fails where a name only begins with ~)
    files = _with_targets(path, [local_file(found) for found in local_paths(path)])
    return files if len(files) == 1 else not_mixed(str(path), files) if path.is_dir() else files


def _refuse_twice(files: Sequence[InputFile]) -> None:
    """Raise `UserError` if two of the files are the same."""
    seen: set[str] = set()
    real_folder = cache(os.path.realpath)  # once for each folder, not for each of ten thousand files
    for file in files:
        # two files in a hub cache may be links to the same content
        if file.commit or is_remote(file.path):
            place = file.path
        elif os.path.islink(file.path):  # noqa: PTH114 - Path takes three times as long
            place = os.path.realpath(file.path)
        else:
            folder, name = os.path.split(file.path)
            place = f"{real_folder(folder)}/{name}"
        if place in seen:
            raise UserError(f"{file.path}: named twice", "name every input once; a blend's weight repeats a data set")
        seen.add(place)


def _with_targets(named: Path, files: list[InputFile]) -> list[InputFile]:
    """Set the targets of files behind a link out of the named path, and print a note about them."""
    top = f"{os.path.realpath(named)}{os.sep}" if named.is_dir() else None
    real_folder = cache(os.path.realpath)  # see `_refuse_twice`
    found = []
    for file in files:
        linked = os.path.islink(file.path)  # noqa: PTH114 - see `_refuse_twice`
        folder = "" if top is None or linked else f"{real_folder(os.path.dirname(file.path))}{os.sep}"  # noqa: PTH120
        place = os.path.realpath(file.path) if linked or not folder.startswith(top or "") else None
        found.append(replace(file, target=place) if place and not place.startswith(top or "\0") else file)
    away = [file for file in found if file.target]
    if away:
        few = ", ".join(f"{file.path} -> {file.target}" for file in away[:SHOWN])
        more = f" and {len(away) - SHOWN:,} more" if len(away) > SHOWN else ""
        _say_once(f"{named}: links lead elsewhere: {few}{more}")
    return found


@cache
def _say_once(line: str) -> None:
    """Print once, although a run looks for files several times."""
    say(line)
