"""Megatron checkpoints: made of an exported folder by Megatron-Bridge, and read back to be compared with it.

write(Path("exported"))               exported/megatron
with read_back(Path("exported")) as folder:
    stored_in(folder)                 the checkpoint's tensors, under their names in Hugging Face folders
"""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from nemotron_engines.modeling.stored import stored_in
from nemotron_serving.programs import MEGATRON_BRIDGE
from nemotron_shared.models.folder import config_of
from nemotron_shared.system.atomic import sync
from nemotron_shared.system.errors import UserError

FOLDER = "megatron"
"""Where an export, and a result of engine megatron_bridge, has its checkpoint."""
PROGRAMS = "nemotron_engines.megatron_bridge"
ITSELF = "export --for transformers: engine megatron_bridge converts that folder when it starts"


def require(folder: Path) -> None:
    """Refuse what is not converted.

    Raises:
        UserError: with a remedy.
    """
    if config_of(folder).get("model_type") != "nemotron_h":
        raise UserError(f"{folder}: --for megatron is for NemotronH", ITSELF)
    if any(name.startswith("mtp.") for name in stored_in(folder)):
        raise UserError(f"{folder}: --for megatron does not convert the block that predicts further tokens", ITSELF)
    MEGATRON_BRIDGE.require()


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
    failed = f"{MEGATRON_BRIDGE.name} failed: "
    MEGATRON_BRIDGE.run(f"{PROGRAMS}.{program}", source.absolute(), target.absolute(), remedy=ITSELF, failed=failed)
