"""A tiny model with random weights, in a store and answering, for all tests of this room."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_engines.modeling.build import ONLY_MADE, load_tokenizer, random_model, save_model
from nemotron_serving.model import Model, ready
from nemotron_shared.artifacts import Store
from nemotron_shared.config.schema import ModelSection
from nemotron_shared.models.importing import import_folder

SPREAD = 0.3
"""Large enough for the answers to differ."""


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one model, `small`."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("serving")
    save_tokenizer(folder / "tokenizer")
    section = ModelSection(architecture="super3_tiny", overrides={})
    model = random_model(section, load_tokenizer(folder / "tokenizer"), 7, ONLY_MADE)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, SPREAD)
    save_model(model, folder / "tokenizer", folder / "small")
    import_folder(Store(folder / "home"), folder / "small", name="small", trusted=False)
    return folder / "home"


@pytest.fixture(scope="session")
def model(home: Path) -> Iterator[Model]:
    """The model, answering eight requests at once; four more may wait."""
    artifact = Store(home).resolve("small")
    with ready(artifact, device="cpu", size=8, slow_kernels=False, most_waiting=20) as found:
        yield found


@pytest.fixture
def never_ends(model: Model, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The model does not know an end, so that an answer has the length that was asked for."""
    monkeypatch.setattr(model.batch, "_eos", set())
    return model
