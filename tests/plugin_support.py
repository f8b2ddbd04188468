"""A package from outside, as it is after an installation: what an installer would write, without a network."""

import tomllib
from pathlib import Path

from support import ROOT

PLUGIN = ROOT / "tests" / "plugin"


def write_entry_points(site: Path, package: Path = PLUGIN) -> None:
    """Make a folder of installed packages that has this one; its code stays where it is."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    about = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {place}" for name, place in points.items()))
    ]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
