"""Import modules as in a container that lacks packages: in_container.py ALLOWED.json MODULE... [-- ARGUMENT...]

Our own code may import what ALLOWED.json lists, and nothing else: what other packages import is a matter of their own
versions there. A package that is named as NAME.* is imported with all that is in it. With arguments, the last module is
then run as a program.
"""

import importlib
import json
import pkgutil
import re
import runpy
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

OURS = ("stages", "nemotron_", "__main__")


class Only:
    """A finder that knows which packages are not there."""

    def __init__(self, allowed: list[str]) -> None:
        names = {module: {_plain(name) for name in found} for module, found in packages_distributions().items()}
        self.lacks = {
            module
            for module, found in names.items()
            if not found & set(allowed) and not any(name.startswith("nemotron-") for name in found)
        }

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Refuse what our code may not import."""
        frame = sys._getframe(1)
        while frame.f_back is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if path is None and name in self.lacks and str(frame.f_globals.get("__name__")).startswith(OURS):
            raise ModuleNotFoundError(f"No module named '{name}' in this container", name=name)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def import_all(name: str) -> None:
    """A module, or with .* all modules of a package; without those that need what the container itself is for."""
    needs = json.loads(Path(sys.argv[1]).read_text())["modules"]
    package = importlib.import_module(name.removesuffix(".*"))
    found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.") if name.endswith(".*") else []
    for each in found:
        try:
            importlib.import_module(each.name)
        except ModuleNotFoundError as error:
            if str(error.name).partition(".")[0] not in needs:
                raise


if __name__ == "__main__":
    sys.meta_path.insert(0, Only(json.loads(Path(sys.argv[1]).read_text())["packages"]))
    modules, _, words = " ".join(sys.argv[2:]).partition(" -- ")
    for module in modules.split():
        import_all(module)
    if words:
        sys.argv[1:] = words.split()
        runpy.run_module(modules.split()[-1], run_name="__main__", alter_sys=True)
    print("imported")
