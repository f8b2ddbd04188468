"""Append sections to the pages of recorded measurements, each with the code, the machine and the date."""

import time
from collections.abc import Iterable
from pathlib import Path

from nemotron_shared.artifacts.artifact import utc
from nemotron_shared.machine.machine import hardware
from nemotron_shared.step.records import git_commit
from nemotron_shared.system.atomic import write_text

FOLDER = Path(__file__).resolve().parent


def code_to_record() -> str:
    """The commit to record; read before a measurement starts, because the tree may change during it."""
    return git_commit(FOLDER.parent) or "of no commit"


def add(name: str, head: str, about: str, code: str, lines: Iterable[str]) -> None:
    """Append a section to a page, which begins with `head`."""
    file = FOLDER / name
    before = file.read_text(encoding="utf-8") if file.is_file() else head
    machine = ", ".join(f"{key} {value}" for key, value in hardware().items())
    section = [f"## {utc(time.time())}, {about}", "", f"Code {code}; {machine}.", "", *lines]
    write_text(file, before + "\n" + "\n".join(section) + "\n")
