"""Print the members and engines that a change affects, as JSON for a CI matrix.

    python ci/changed.py origin/main               ["sft", "rl"]
    python ci/changed.py --all                     ["shared", "data", "engines", "app", "serving", ...]
    python ci/changed.py origin/main --engines     ["nemo_rl"]

Determined by the import graph: a module affects all members that import it, directly or indirectly, so a change in one
engine affects the stages that offer it. The lock, the workspace file and CI itself affect everything.
"""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "shared" / "core" / "src"))

from nemotron_shared.step.code import modules_of  # noqa: E402
from nemotron_shared.system.file_cache import FileCache  # noqa: E402 (only the standard library is needed)

STAGES = ("pretrain", "sft", "rl", "eval")
READ = FileCache(None)
ROOMS = {"shared": "core"} | {name: name for name in ("data", "cluster", "engines", "app", "serving")}
FOLDERS = {name: Path("shared", room) for name, room in ROOMS.items()} | {name: Path("stages", name) for name in STAGES}
PACKAGES = {f"nemotron_{name}": FOLDERS[name] / "src" / f"nemotron_{name}" for name in ROOMS} | {
    f"stages.{name}": FOLDERS[name] for name in STAGES
}
ENGINES = (
    *("automodel", "clients", "evaluator", "llama_cpp", "megatron", "modelopt"),
    *("nemo_gym", "nemo_rl", "nemo_run", "vllm_cpu"),
)
"""Names used by `ci/engine.sh`."""
ENGINE_PACKAGES = {
    "automodel": ("nemotron_engines.automodel", "nemotron_engines.stand_ins"),
    "clients": ("nemotron_serving.api", "nemotron_serving.responses", "nemotron_serving.server"),
    "evaluator": ("stages.eval",),
    "llama_cpp": (
        "nemotron_serving.gguf_convert",
        "nemotron_serving.gguf_file",
        "nemotron_serving.gguf_run",
        "nemotron_serving.programs",
    ),
    "megatron": ("nemotron_engines.megatron_bridge", "nemotron_engines.stand_ins", "nemotron_serving.megatron"),
    "modelopt": (
        "nemotron_serving.fp8",
        "nemotron_serving.modelopt_run",
        "nemotron_serving.passport.numbers",
        "nemotron_serving.programs",
    ),
    "nemo_gym": ("nemotron_data.gym",),
    "nemo_rl": ("nemotron_engines.nemo_rl",),
    "nemo_run": ("nemotron_cluster.backends",),
    "vllm_cpu": (
        "nemotron_serving.programs",
        "nemotron_serving.vllm_run",
        "stages.rl.engines.trl.generators",
        "stages.rl.engines.trl.vllm_needs",
    ),
}
TOUCHES_ALL = ("uv.lock", "pyproject.toml", "ci/", ".github/", ".ci/")


def package_of(path: Path) -> str | None:
    """Package of a source or data file, or None for a file outside of all packages."""
    for package, folder in PACKAGES.items():
        if path.is_relative_to(folder) and "tests" not in path.relative_to(folder).parts:
            inner = path.relative_to(folder).parent
            while inner.parts and not (ROOT / folder / inner / "__init__.py").is_file():
                inner = inner.parent  # a data folder belongs to the package around it
            return ".".join([package, *inner.parts])
    return None


@cache
def loads(prefixes: tuple[str, ...]) -> set[str]:
    """All modules of these packages, and everything that they import, directly or indirectly."""
    roots = {package: ROOT / folder for package, folder in PACKAGES.items()}
    entries = []
    for package, folder in roots.items():
        for path in folder.rglob("*.py"):
            inner = path.relative_to(folder).with_suffix("").parts
            name = ".".join([package, *(inner[:-1] if inner[-1] == "__init__" else inner)])
            wanted = any(name == one or name.startswith(f"{one}.") for one in prefixes)
            if wanted and not {"tests", "build"} & set(inner):
                entries.append(name)
    return set(modules_of(entries, roots, READ)) | set(entries)


def touched(paths: list[str], *, engines: bool) -> list[str]:
    """Members, or engines, to test after a change of `paths`, in a fixed order."""
    names = list(ENGINES if engines else FOLDERS)
    if any(path.startswith(TOUCHES_ALL) for path in paths):
        return names
    found = []
    for name in names:
        own = ENGINE_PACKAGES[name] if engines else (f"nemotron_{name}" if name in ROOMS else f"stages.{name}",)
        reached = loads(own)
        for path in map(Path, paths):
            package = package_of(path)
            module = f"{package}.{path.stem}" if path.suffix == ".py" and path.stem != "__init__" else package
            beside = not engines and path.is_relative_to(FOLDERS[name])
            # deleted modules and data files affect all users of their package
            no_module = path.suffix != ".py" or not (ROOT / path).is_file()
            if beside or module in reached or (no_module and package in reached):
                found.append(name)
                break
    return found


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--engines"]
    engines = "--engines" in sys.argv
    if len(words) != 1:
        sys.exit("usage: python ci/changed.py BASE | --all [--engines]")
    if words[0] == "--all":
        found = list(ENGINES if engines else FOLDERS)
    else:
        command = ["git", "diff", "--name-only", f"{words[0]}...HEAD"]
        changed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        found = touched(changed, engines=engines)
    print(json.dumps(found))
