"""Engines whose packages cannot share the ordinary environment: what each needs, where it is, what starts there.

    nemotron engine install automodel        .engines/automodel, made from uv.lock
    nemotron super3 sft -c tiny engine=automodel     starts the step with the Python of that environment

The folder `.engines` lies in the repository; NEMOTRON_ENGINES names another one.
"""

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import distributions
from itertools import pairwise
from pathlib import Path

from nemotron_shared.runtime.console import say

FOLDER_VARIABLE = "NEMOTRON_ENGINES"
SUPPORTED = ("3.11", "3.12", "3.13")


@dataclass(frozen=True)
class Environment:
    """An environment and the engines that it is for.

    Attributes:
        engines: names that `engine=` takes.
        packages: what must be there, and the module that each is imported as.
        sync: what `uv sync` is told.
        pythons: versions of Python for which these packages exist.
        systems: operating systems for which they exist, as `platform.system()` calls them.
        runs_step: whether the step itself runs in it; if not, the step starts programs of it.
        source: the module that comes from a checkout, because no registry has the package.
        unlocked: packages that are installed after those of the lock, in spite of it.
        requirements: a module and a file beside it with all packages and their versions, in place of the lock.
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

    @property
    def needs(self) -> str:
        """Python and systems, for people: `Python 3.12, Linux`."""
        return f"Python {' or '.join(self.pythons)}, {' or '.join(self.systems)}"

    @property
    def install(self) -> str:
        """The command that makes it."""
        command = f"nemotron engine install {self.name}"
        return f"{command} --from CHECKOUT" if self.source else command

    @property
    def members(self) -> tuple[str, ...]:
        """The packages of ours that are installed in it, besides those that they need; none where it has none."""
        return tuple(name for option, name in pairwise(self.sync) if option == "--package")

    @property
    def modules(self) -> tuple[str, ...]:
        """Everything that must be importable in it."""
        return (*self.packages.values(), *filter(None, [self.source]))

    @property
    def folder(self) -> Path | None:
        """Where it is, or would be; None outside a checkout, where there is no lock to make it from."""
        if given := os.environ.get(FOLDER_VARIABLE):
            return Path(given).expanduser().absolute() / self.name
        root = repository()
        return root / ".engines" / self.name if root else None

    def versions(self) -> dict[str, str]:
        """The versions of its packages that are installed in its folder, read without starting its Python."""
        found = installed(self.folder) if self.folder else {}
        return {name: found[name] for name in self.packages if name in found}

    @property
    def programs(self) -> Path | None:
        """Its folder of programs, `python` and `torchrun` among them; None where it is not wholly installed."""
        folder = self.folder
        whole = folder is not None and len(self.versions()) == len(self.packages)
        return folder / "bin" if folder and whole else None

    @property
    def is_here(self) -> bool:
        """Whether this very process could import all of it."""
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
    # its harness has the import name of lm-eval, which the stage itself uses
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
    # no engine of a step: what hands jobs to Docker and to clouds. Its packages contradict those of the lock
    Environment(
        "nemo_run",
        engines=(),
        packages={"nemo-run": "nemo_run", "leptonai": "leptonai", "kubernetes": "kubernetes"},
        systems=("Linux", "Darwin"),
        runs_step=False,
        requirements=("nemotron_cluster.backends", "nemo_run.txt"),
    ),
)


def repository() -> Path | None:
    """The checkout that this code runs from, with its `uv.lock`; None for installed wheels."""
    root = Path(__file__).resolve().parents[5]
    return root if (root / "uv.lock").is_file() and (root / "stages").is_dir() else None


def environment_of(name: str) -> Environment | None:
    """The environment of an engine, or the one of that name; None for an engine that needs none of its own."""
    return next((each for each in ENVIRONMENTS if name == each.name or name in each.engines), None)


def installed(folder: Path | None = None) -> dict[str, str]:
    """The version of each package that an environment has, read without starting its Python; without a folder, of
    those that this process would find."""
    places = [str(path) for path in folder.glob("lib/python3.*/site-packages")] if folder else sys.path
    # the first one that is found is the one that is imported
    return {each.name.lower().replace("_", "-"): each.version for each in reversed([*distributions(path=places)])}


def python_for_step(engine: str) -> str:
    """The Python that a step with this engine starts with: this one, or the one of the engine's environment.

    Where the engine is in neither, the step starts here and says what is missing.
    """
    environment = environment_of(engine)
    if environment is None or not environment.runs_step or environment.is_here or environment.programs is None:
        return sys.executable
    python = str(environment.programs / "python")
    say(f"engine '{engine}' is not in this environment: starting the step with {python}")
    return python


def how_to_get(engine: str) -> str:
    """What to do where an engine's packages are missing or of another version."""
    environment = environment_of(engine)
    if environment is None:
        return "it belongs to the ordinary environment: uv sync --all-packages"
    if environment.programs is None or environment.is_here:
        return f"make its environment: {environment.install}"
    return f"it is in an environment of its own, so start it there: {environment.programs / 'torchrun'}"


def _can_import(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package above it is missing
        return False
