"""Write the names of packages in tests/containers.yaml, from the lock files that the containers are built from.

    uv run python ci/containers.py nemo-rl=/checkouts/RL megatron-bridge=/checkouts/Megatron-Bridge

Each is a git checkout that contains the commits in that file. NeMo-RL's docker/Dockerfile ends with
`uv sync --all-groups`, Megatron-Bridge's also syncs all extras, over a PyTorch image. For the use of the names see
tests/test_containers.py.
"""

import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from packaging.markers import Marker

FILE = Path(__file__).resolve().parent.parent / "tests" / "containers.yaml"


def main(checkouts: Mapping[str, str]) -> None:
    """Fill in the packages of every container in the file."""
    text = FILE.read_text(encoding="utf-8")
    about = text[: text.index("\n- ")]
    entries = yaml.safe_load(text)
    for entry in entries:
        entry["packages"] = sorted(names_of(entry, checkouts[entry["project"]]))
    FILE.write_text("\n".join([about, *(line for entry in entries for line in written(entry))]) + "\n", "utf-8")


def names_of(entry: Mapping[str, Any], checkout: str) -> set[str]:
    """Packages that `uv sync` installs for a project, with all dependencies, and those of the base image."""
    command = ["git", "-C", checkout, "show", f"{entry['commit']}:uv.lock"]
    lock = tomllib.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    packages: dict[str, list[dict[str, Any]]] = {}
    for package in lock["package"]:
        packages.setdefault(package["name"], []).append(package)
    environment = {
        "python_version": entry["python"], "python_full_version": f"{entry['python']}.0", "sys_platform": "linux",
        "platform_system": "Linux", "platform_machine": "x86_64", "implementation_name": "cpython",
        "platform_python_implementation": "CPython", "os_name": "posix", "extra": "",
    }  # fmt: skip

    def wanted(dependencies: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str | None, tuple[str, ...]]]:
        for each in dependencies:
            if "marker" not in each or Marker(each["marker"]).evaluate(environment):
                yield each["name"], each.get("version"), tuple(each.get("extra", ()))

    (project,) = packages[entry["project"]]
    groups = [project.get("dependencies", []), *project.get("dev-dependencies", {}).values()]
    if entry["extras"]:
        groups += project.get("optional-dependencies", {}).values()
    todo = [each for group in groups for each in wanted(group)]
    seen = set()
    while todo:
        name, version, extras = each = todo.pop()
        if each in seen:
            continue
        seen.add(each)
        for package in packages.get(name, []):
            if version in (None, package.get("version")):
                todo += wanted(package.get("dependencies", []))
                for extra in extras:
                    todo += wanted(package.get("optional-dependencies", {}).get(extra, []))
    return {name for name, *_ in seen} | set(entry["below"])


def written(entry: Mapping[str, Any]) -> Iterator[str]:
    """Lines of an entry."""
    for number, (key, value) in enumerate(entry.items()):
        text = f"[{', '.join(value)}]" if isinstance(value, list) else yaml.safe_dump(value).partition("\n")[0]
        lines = textwrap.wrap(f"{key}: {text}", 116, subsequent_indent="    ", break_on_hyphens=False)
        yield from (f"{'- ' if number == 0 and line is lines[0] else '  '}{line}" for line in lines)


if __name__ == "__main__":
    main(dict(word.split("=", 1) for word in sys.argv[1:]))
