"""Copy the packages that a job runs into its folder.

Changes to the checkout while a job waits therefore do not affect it. Only our own packages are copied; torch and
other dependencies come from the job's environment.
"""

import importlib.util
import shutil
from collections.abc import Iterable
from pathlib import Path

from nemotron_shared.errors import UserError

LEFT_OUT = ("__pycache__", "tests", "*.pyc", "*.egg-info", ".*", "node_modules")


def copy_packages(names: Iterable[str], to: Path) -> list[str]:
    """Copy packages, by import name, into a folder for PYTHONPATH; returns those found.

    Raises:
        UserError: none of them is installed.
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
