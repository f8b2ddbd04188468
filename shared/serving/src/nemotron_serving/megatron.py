"""Megatron checkpoints: made of an exported folder by Megatron-Bridge, and read back to be compared with it.

write(Path("exported"))               exported/megatron
with read_back(Path("exported")) as folder:
    stored_in(folder)                 the checkpoint's tensors, under their names in Hugging Face folders
"""

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from nemotron_engines.modeling.stored import stored_in
from nemotron_serving.programs import QUIET, last_words
from nemotron_shared.atomic import sync
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.environments import environment_of
from nemotron_shared.runtime.models.folder import config_of

BRIDGE = "Megatron-Bridge"
MEGATRON = environment_of("megatron_bridge")
FOLDER = "megatron"
"""Where an export, and a result of engine megatron_bridge, has its checkpoint."""
PROGRAMS = "nemotron_engines.megatron_bridge"
ITSELF = "export --for transformers: engine megatron_bridge converts that folder when it starts"


def python() -> str:
    """The Python with Megatron-Bridge.

    Raises:
        UserError: it is not installed.
    """
    assert MEGATRON is not None
    if MEGATRON.python is None:
        raise UserError(f"{BRIDGE} is not installed", f"make its environment: {MEGATRON.install}")
    return MEGATRON.python


def require(folder: Path) -> None:
    """Refuse what is not converted.

    Raises:
        UserError: with a remedy.
    """
    if config_of(folder).get("model_type") != "nemotron_h":
        raise UserError(f"{folder}: --for megatron is for NemotronH", ITSELF)
    if any(name.startswith("mtp.") for name in stored_in(folder)):
        raise UserError(f"{folder}: --for megatron does not convert the block that predicts further tokens", ITSELF)
    python()


def write(folder: Path) -> None:
    """Add the checkpoint to a folder."""
    _run("export_checkpoint", folder, folder / FOLDER)
    for file in (folder / FOLDER).rglob("*"):
        sync(file)


@contextmanager
def read_back(export: Path) -> Generator[Path]:
    """A folder with the checkpoint's tensors, for as long as the block runs."""
    with TemporaryDirectory() as folder:
        _run("import_checkpoint", export / FOLDER, Path(folder))
        yield Path(folder)


def _run(program: str, source: Path, target: Path) -> None:
    command = [python(), "-m", f"{PROGRAMS}.{program}", source.absolute(), target.absolute()]
    # always on the CPU, where this was tried
    quiet = os.environ | QUIET
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=quiet)
    if done.returncode:
        raise UserError(f"{BRIDGE} failed: {last_words(done, BRIDGE)}", ITSELF)
