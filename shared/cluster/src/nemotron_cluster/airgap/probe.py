"""Report the package versions of an environment, and try imports. Runs with its Python and only the standard library.

python probe.py torch      {"versions": {"torch": "2.13.0", ...}, "imports": {"torch": "2.13.0 OK"}, "broken": []}
"""

import importlib
import json
import re
import sys
from importlib.metadata import distributions, packages_distributions


def probe(names: list[str]) -> dict[str, object]:
    """Versions of all packages, and the results of importing the modules of the named ones."""
    versions = {_plain(each.name): each.version for each in distributions()}
    modules: dict[str, list[str]] = {}
    for module, owners in packages_distributions().items():
        for owner in owners:
            modules.setdefault(_plain(owner), []).append(module)
    imports: dict[str, str] = {}
    broken: list[str] = []
    for name in names:
        found = [each for each in modules.get(name, []) if each.isidentifier() and not each.startswith("_")]
        if "stages" in found:  # the namespace package of all stages, which contains no code
            found = [f"stages.{name.removeprefix('nemotron-')}.train"]
        for module in sorted(found):
            try:
                importlib.import_module(module)
                imports[module] = f"{versions[name]} OK"
            except Exception as error:
                broken.append(f"{module} of {name}: {type(error).__name__}: {error}")
        if not found:
            broken.append(f"{name} is not installed")
    if torch := sys.modules.get("torch"):
        imports["CUDA"] = f"{torch.cuda.is_available()} (torch is made for {torch.version.cuda})"
    return {"versions": versions, "imports": imports, "broken": broken}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    print(json.dumps(probe(sys.argv[1:])))
