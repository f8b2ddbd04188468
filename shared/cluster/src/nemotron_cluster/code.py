"""What travels with a job: the packages that it runs, as they are here and now.

A checkout that changes while a job waits changes nothing for the job. Only what is ours travels; torch and its like
are those of the job's own environment.
"""

import importlib.util
import shutil
from collections.abc import Iterable
from pathlib import Path

from nemotron_shared.errors import UserError

LEFT_OUT = ("__pycache__", "tests", "*.pyc", "*.egg-info", ".*", "node_modules")


def copy_packages(names: Iterable[str], to: Path) -> list[str]:
    """Copy packages, by the names they are imported as, into a folder that PYTHONPATH can name; returns those found.

    A package of several places, as `stages` is, becomes one.

    Raises:
        UserError: none of them is installed here.
    """
    found = []
    for name in names:
        spec = importlib.util.find_spec(name)
        places = list(spec.submodule_search_locations or ()) if spec else []
        for place in map(Path, places):
            shutil.copytree(place, to / name, ignore=shutil.ignore_patterns(*LEFT_OUT), dirs_exist_ok=True)
        found += [name] if places else []
    if not found:
        raise UserError("none of the packages that the job runs is installed here", "uv sync --all-packages")
    return found
