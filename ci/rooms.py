"""The import picture of a package: how its folders, and the modules in them, stand on each other.

    uv run python ci/rooms.py                       # the core
    uv run python ci/rooms.py shared/data           # another package
    uv run python ci/rooms.py --tree CHECKOUT       # the core in another checkout, for a comparison

Floors: rooms on the longest chain of imports, down to one that imports nothing. Arrows: pairs of which one imports
the other. All imports count, those inside functions too; those for type checkers do not. In the picture of modules, the
folders of `WHOLE` are one room each: they have one way in, and callers need not know the files behind it.
"""

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WHOLE = ("artifacts", "config", "families", "models", "trackers")
"""Folders that count as one module."""
FRONT = "nemotron"
"""The package that people import, besides that of the app; it only hands on names."""
Graph = Mapping[str, set[str]]


def imports_of(package: Path) -> Graph:
    """The modules of ours that each module of a package imports, by their dotted names below the package."""
    modules = {_dotted(path, package): path for path in sorted(package.rglob("*.py")) if not _is_bare(path, package)}
    return {name: set(_imported(path, package.name, modules)) - {name} for name, path in modules.items()}


def _is_bare(path: Path, package: Path) -> bool:
    """Whether it is a folder's docstring and nothing else; the package's own counts, as the end of every name."""
    is_folder = path.name == "__init__.py" and path.parent != package
    return is_folder and len(ast.parse(path.read_text(encoding="utf-8")).body) == 1


def _dotted(path: Path, package: Path) -> str:
    return ".".join(path.relative_to(package).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


def _imported(path: Path, package: str, modules: Mapping[str, Path]) -> Iterator[str]:
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name}" for name in names]
        for name in names:
            if name.split(".")[0] == package:
                below = name.removeprefix(package).removeprefix(".")
                while below not in modules:
                    below = below.rpartition(".")[0]
                yield below


def rooms(imports: Graph, room_of: Callable[[str], str]) -> Graph:
    """The same picture with several modules in one room; imports inside a room do not count."""
    picture: dict[str, set[str]] = defaultdict(set)
    for name, targets in imports.items():
        picture[room_of(name)] |= {room_of(target) for target in targets} - {room_of(name)}
    picture.pop("", None)  # the package's own docstring
    return picture


def longest_chain(picture: Graph) -> list[str]:
    """The longest chain of imports.

    Raises:
        ValueError: the picture has a circle, so that no chain is the longest.
    """
    chains: dict[str, list[str]] = {}

    def chain_from(room: str, above: tuple[str, ...]) -> list[str]:
        if room in above:
            raise ValueError(f"a circle: {' -> '.join([*above[above.index(room) :], room])}")
        if room not in chains:
            below = (chain_from(target, (*above, room)) for target in sorted(picture.get(room, ())))
            chains[room] = [room, *max(below, key=len, default=[])]
        return chains[room]

    return max((chain_from(room, ()) for room in sorted(picture)), key=len, default=[])


def folder_of(module: str) -> str:
    """The first folder below the package, or the module itself where it is in none."""
    return module.split(".")[0]


def module_of(module: str) -> str:
    """The module, or the folder of `WHOLE` that it is in."""
    parts = module.split(".")
    inside = next((number for number, part in enumerate(parts) if part in WHOLE), None)
    return module if inside is None else ".".join(parts[: inside + 1])


def main() -> int:
    """Print both pictures of a package."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", nargs="?", default="shared/core", help="a folder below the checkout")
    parser.add_argument("--tree", type=Path, default=ROOT, help="another checkout")
    asked = parser.parse_args()
    (package,) = (one for one in (asked.tree / asked.package / "src").iterdir() if one.name != FRONT)
    imports = imports_of(package)
    for name, room_of in (("folders", folder_of), ("modules", module_of)):
        picture = rooms(imports, room_of)
        chain = longest_chain(picture)
        arrows = sum(len(targets) for targets in picture.values())
        print(f"{name}: {len(picture)}, floors {len(chain)}, arrows {arrows}")
        print(f"    {' -> '.join(chain)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
