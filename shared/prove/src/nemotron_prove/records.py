"""Records of campaigns: sections of a page below `benchmarks/`, each with the code, the machine and the date."""

import time
from collections.abc import Iterable
from pathlib import Path

from nemotron_shared.artifacts.artifact import utc
from nemotron_shared.atomic import write_text
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.machine import hardware
from nemotron_shared.runtime.records import git_commit

ROOT = Path(__file__).resolve().parents[4]
FOLDER = ROOT / "benchmarks"


def code_to_record() -> str:
    """The commit that a campaign will be recorded with; asked before it begins, because people edit meanwhile.

    Raises:
        UserError: there is nowhere to record.
    """
    if not FOLDER.is_dir():
        raise UserError(f"--record writes to {FOLDER}, and this is no clone of the repository", "run it in a clone")
    return git_commit(ROOT) or "of no commit"


def add(name: str, head: str, about: str, code: str, lines: Iterable[str]) -> Path:
    """Append a section to a page, which begins with `head`; returns its file."""
    file = FOLDER / name
    before = file.read_text(encoding="utf-8") if file.is_file() else head
    machine = ", ".join(f"{key} {value}" for key, value in hardware().items())
    section = [f"## {utc(time.time())}, {about}", "", f"Code {code}; {machine}.", "", *lines]
    write_text(file, before + "\n" + "\n".join(section) + "\n")
    return file
