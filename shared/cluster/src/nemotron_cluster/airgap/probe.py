"""Run by another environment's Python, with the standard library alone: which versions it has, and what it imports.

python probe.py '{"import": ["torch"], }'      {"versions": {...}, "imports": {...}, "broken": [...]}
"""

import importlib
import importlib.util
import json
import sys
from importlib.metadata import distributions, packages_distributions

asked = json.loads(sys.argv[1])
versions = {each.name.lower().replace("_", "-").replace(".", "-"): each.version for each in distributions()}
modules: dict[str, list[str]] = {}
for module, owners in packages_distributions().items():
    for owner in owners:
        modules.setdefault(owner.lower().replace("_", "-").replace(".", "-"), []).append(module)
imports: dict[str, str] = {}
broken: list[str] = []
for name in asked["import"]:
    found = modules.get(name, [])
    if "stages" in found:  # the package that all stages share has no code
        found = [f"stages.{name.removeprefix('nemotron-')}.train"]
    for module in sorted(each for each in found if each.isidentifier() or "." in each):
        if module.startswith("_"):
            continue
        try:
            importlib.import_module(module)
            imports[module] = f"{versions.get(name, '')} OK".strip()
        except Exception as error:
            broken.append(f"{module} of {name}: {type(error).__name__}: {error}")
    if not found:
        broken.append(f"{name} is not installed")
if "torch" in sys.modules:
    torch = sys.modules["torch"]
    imports["CUDA"] = f"{torch.cuda.is_available()} (torch is made for {torch.version.cuda})"
print(json.dumps({"versions": versions, "imports": imports, "broken": broken}))
