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

    Raises:
        UserError: none of them is installed here.
    """
    found = []
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            place = to.joinpath(*name.split("."))
            shutil.copytree(Path(spec.origin).parent, place, ignore=shutil.ignore_patterns(*LEFT_OUT))
            found.append(name)
    if not found:
        raise UserError("none of the packages that the job runs is installed here", "uv sync --all-packages")
    return found
