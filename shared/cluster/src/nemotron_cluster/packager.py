"""Files of the user's working folder that are copied to another file system with a job.

    packager = "git"        files tracked by git below the working folder, in their current state
    packager = "pattern"    files that match packager_include_pattern
    packager = "hybrid"     both
    packager = "none"       nothing

On the nodes, they are the job's working folder, so that relative paths of the command line keep their meaning.
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from nemotron_cluster.folder import FILES
from nemotron_cluster.profiles.schema import Remote
from nemotron_shared.errors import UserError

STORE = ".nemotron"
"""Never copied: it contains artifacts and other jobs."""


def pack(profile: Remote, start: Path, folder: Path) -> int:
    """Copy the files into `folder`/files; returns how many.

    Raises:
        UserError: a pattern that matches nothing, or leads out of the working folder.
    """
    chosen = dict.fromkeys([*_kept_by_git(profile, start), *_of_patterns(profile, start)])
    (folder / FILES).mkdir()
    for path in chosen:
        if not (start / path).resolve().is_relative_to(start.resolve()):
            raise UserError(f"{path} is a link out of {start}", "copy the file here, or leave it out")
        target = folder / FILES / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(start / path, target)
    return len(chosen)


def _kept_by_git(profile: Remote, start: Path) -> Iterator[Path]:
    if profile.packager not in ("git", "hybrid"):
        return
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=start, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return  # not a git repository, so no tracked files
    yield from (Path(name) for name in listed.stdout.split("\0") if name and (start / name).is_file())


def _of_patterns(profile: Remote, start: Path) -> Iterator[Path]:
    if profile.packager not in ("pattern", "hybrid"):
        return
    for pattern in profile.packager_include_pattern:
        if pattern.startswith(("/", "~")) or ".." in Path(pattern).parts:
            raise UserError(f"packager_include_pattern: '{pattern}' leads out of {start}", "name files below it")
        found = [path for path in sorted(start.glob(pattern)) if path.is_file() and STORE not in path.parts]
        if not found:
            raise UserError(f"packager_include_pattern: '{pattern}' fits nothing in {start}", "correct or remove it")
        yield from (path.relative_to(start) for path in found)
