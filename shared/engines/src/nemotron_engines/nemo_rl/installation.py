"""Where NeMo-RL is on this machine, and whether it is the version that a recipe is written for."""

import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemotron_engines.nemo_rl.bases import digest_of, load_base
from nemotron_engines.nemo_rl.settings import NeMoRLEngine
from nemotron_engines.nemo_rl.table import load_table
from nemotron_engines.nemo_rl.versions import REPOSITORY, VERSIONS, commit_of, version_of
from nemotron_shared.errors import UserError

IN_CONTAINER = Path("/opt/nemo-rl")
OF_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")


@dataclass(frozen=True)
class Installation:
    """A checkout that fits, the base config as it stands there, and how its programs are started."""

    checkout: Path
    base: dict[str, Any]
    runner: str

    def command(self, program: Path | str, *arguments: str, extra: str | None = None) -> list[str]:
        """A command line that runs a Python program with NeMo-RL's interpreter."""
        if self.runner == "python":
            return [sys.executable, str(program), *arguments]
        extras = ["--extra", extra] if extra else []
        return ["uv", "run", *extras, "python", str(program), *arguments]

    def environment(self) -> dict[str, str]:
        """Ours without torchrun's variables; the checkout is importable, for the plans in `examples`."""
        kept = {name: value for name, value in os.environ.items() if name not in OF_TORCHRUN}
        if self.runner == "uv":
            kept.pop("VIRTUAL_ENV", None)
        paths = [str(self.checkout), *filter(None, [kept.get("PYTHONPATH")])]
        return kept | {"PYTHONPATH": os.pathsep.join(paths)}


def find_installation(engine: NeMoRLEngine) -> Installation:
    """The checkout that `engine` asks for.

    Raises:
        UserError: there is none, it is another version, or `uv` is missing.
    """
    checkout = find_checkout(engine)
    # The commit may differ, as in a container with a fix on top; the base config is compared word by word in any case.
    wanted, commit, package = VERSIONS[engine.version], commit_of(checkout), version_of(checkout)
    if commit != wanted.commit and package != wanted.package:
        what = f"version {package}" + (f", commit {commit[:9]}" if commit else "")
        raise UserError(
            f"{checkout} is {what}; this recipe is written for NeMo-RL {engine.version} "
            f"(version {wanted.package}, commit {wanted.commit[:9]})",
            how_to_get(engine.version),
        )
    base = load_base(checkout, engine.base)
    if digest_of(base) != load_table(engine.version).bases[engine.base].digest:
        raise UserError(
            f"{checkout / engine.base} is not the file of NeMo-RL {engine.version} (changed, or another commit)",
            how_to_get(engine.version),
        )
    if engine.runner == "uv" and shutil.which("uv") is None:
        raise UserError("engine.runner: there is no `uv` here", "install uv, or set engine.runner=python")
    return Installation(checkout, base, engine.runner)


def find_checkout(engine: NeMoRLEngine) -> Path:
    """`engine.checkout`, the place that `nemo_rl` is imported from, or the container's."""
    if engine.checkout is not None:
        folder = Path(engine.checkout).expanduser().resolve()
        if not (folder / "nemo_rl").is_dir():
            raise UserError(f"engine.checkout: {folder} is no NeMo-RL checkout", how_to_get(engine.version))
        return folder
    found = importlib.util.find_spec("nemo_rl")
    places = [Path(found.origin).parents[1]] if found and found.origin else []
    for place in (*places, IN_CONTAINER):
        if (place / "examples").is_dir():
            return place
    raise UserError(
        "engine nemo_rl: NeMo-RL is not here (the package of that name on PyPI is empty)", how_to_get(engine.version)
    )


def how_to_get(version: str) -> str:
    """Container and git command of a version."""
    wanted = VERSIONS[version]
    return (
        f"run inside the container {wanted.container}, or:\n"
        f"    git clone --recursive {REPOSITORY} nemo-rl\n"
        f"    git -C nemo-rl checkout --recurse-submodules {wanted.commit}\n"
        "  and set engine.checkout=nemo-rl"
    )
