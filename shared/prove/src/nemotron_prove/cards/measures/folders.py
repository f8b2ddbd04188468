"""Models that go into the store and out of it."""

from pathlib import Path

import torch

from nemotron_app.main import dispatch
from nemotron_engines.modeling.build import ONLY_MADE, load_model
from nemotron_prove.cards.measured import Measured
from nemotron_prove.cards.measures.tiny import logits_of, tiny_folder, tokens
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.digest import file_digest
from nemotron_shared.errors import UserError

NAME = "card-model"
WEIGHTS = "*.safetensors"


def _import(family: str, folder: Path) -> tuple[Path, Artifact]:
    source, store = folder / "model", Store(folder / "home")
    tiny_folder(family, source)
    if dispatch(["model", "import", str(source), "--as", NAME, "--home", str(store.home)]):
        raise UserError("the import failed")
    return source, store.resolve(NAME)


def imported(family: str, folder: Path) -> Measured:
    """Files of weights that are not the same bytes in the store."""
    source, artifact = _import(family, folder)
    files = sorted(source.glob(WEIGHTS))
    differing = [file for file in files if file_digest(file) != file_digest(artifact.path / file.name)]
    return Measured({"differing files of weights": len(differing) if files else 1}, 0)


def exported(family: str, folder: Path) -> Measured:
    """Logits of the exported model against those of the model in the store."""
    _, artifact = _import(family, folder)
    out = folder / "out"
    if dispatch(["export", NAME, str(out), "--home", str(folder / "home")]):
        raise UserError("the export failed")
    ids = tokens(2, 31)
    before, after = (logits_of(load_model(path, ONLY_MADE).eval(), ids) for path in (artifact.path, out))
    return Measured({"largest difference of a logit": float(torch.max(torch.abs(before - after)))}, 0)
