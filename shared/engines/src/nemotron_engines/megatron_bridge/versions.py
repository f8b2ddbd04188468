"""Which Megatron-Bridge is installed, and the few names that differ between its versions.

Everything was tested with the pinned pair. A recipe's container may bring an older Bridge (0.4 has the same recipes
and the packed Parquet reader), where some modules and fields have other names; only this file knows them:

    0.4                                                   0.6
    data.datasets.packed_sequence.PackedSequenceSpecs     data.packing.config.PackedSequenceSpecs
    training.config.FinetuningDatasetConfig               data.builders.GPTSFTDatasetConfig
      packed_sequence_specs=specs                           offline_packing_specs=specs, enable_offline_packing=True

In no version do the recipes of pretraining and fine-tuning take arguments, although NVIDIA's YAML passes some.
"""

import importlib
import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nemotron_shared.errors import UserError, did_you_mean

TRIED = {"megatron-core": "0.19.2", "megatron-bridge": "0.6.2"}
OLDEST_BRIDGE = (0, 4)  # the first with the Super recipes and the packed Parquet reader
RECIPES = "megatron.bridge.recipes"
INSTALL = "nemotron engine install megatron_bridge"
PACKING_CLASSES = (
    ("megatron.bridge.data.packing.config", "PackedSequenceSpecs"),
    ("megatron.bridge.data.datasets.packed_sequence", "PackedSequenceSpecs"),
)
DATASET_CLASSES = (
    ("megatron.bridge.data.builders", "GPTSFTDatasetConfig"),
    ("megatron.bridge.training.config", "FinetuningDatasetConfig"),
)


def untried() -> str | None:
    """A notice if the installed pair differs from the tested one, else None."""
    found = {name: version(name) for name in TRIED}
    if found == TRIED:
        return None
    ours, theirs = (", ".join(f"{name} {pair[name]}" for name in TRIED) for pair in (TRIED, found))
    return f"{theirs} is installed; this engine was tested with {ours}"


def recipe_function(name: str) -> Callable[[], Any]:
    """The recipe `name`, a dotted path below `megatron.bridge.recipes`.

    Raises:
        UserError: unknown module or function.
    """
    module_name, _, function_name = name.rpartition(".")
    try:
        module = importlib.import_module(f"{RECIPES}.{module_name}")
    except ModuleNotFoundError as error:
        if not f"{RECIPES}.{module_name}".startswith(error.name or "?"):
            raise
        raise UserError(f"engine.recipe: module {error.name} not found", f"use a path below {RECIPES}") from error
    known = [key for key in vars(module) if key.endswith("_config") and not key.startswith("_")]
    if function_name not in known:
        remedy = did_you_mean(function_name, known, f"there are: {', '.join(known)}")
        raise UserError(f"engine.recipe: {RECIPES}.{module_name} has no recipe '{function_name}'", remedy)
    return getattr(module, function_name)


@contextmanager
def hub_replaced_by(folder: Path) -> Generator[list[str]]:
    """Inside the block, a recipe that would read a model's config from the hub reads `folder` (with a config.json).

    Yields a list of the hub names that were requested; if it stays empty, the recipe describes its model itself.
    """
    from unittest.mock import patch  # imported late: it is slow, and schemas import this module

    from megatron.bridge import AutoBridge  # ty: ignore[import-not-found]

    asked: list[str] = []
    load = AutoBridge.from_hf_pretrained

    def from_folder(path: Any, **options: Any) -> Any:
        asked.append(str(path))
        return load(str(folder))

    with patch.object(AutoBridge, "from_hf_pretrained", from_folder):
        yield asked


def packed_dataset(train: Path, valid: Path | None, pack_size: int, scratch: Path, **fields: Any) -> Any:
    """Bridge's dataset config for packed Parquet files.

    Bridge writes to `scratch` instead of a folder next to the data. `fields` are passed to the config unchanged.
    `dataset_root` only satisfies Bridge, which requires a source even if the packed files are named.
    """
    specs = _first(PACKING_CLASSES)(
        packed_sequence_size=pack_size,
        packed_train_data_path=str(train),
        packed_val_data_path=None if valid is None else str(valid),
        packed_metadata_path=str(scratch / "packs.json"),
    )
    config = _first(DATASET_CLASSES)
    fields |= {"seq_length": pack_size, "dataset_root": train.parent, "do_validation": valid is not None}
    if "offline_packing_specs" in inspect.signature(config).parameters:
        return config(**fields, enable_offline_packing=True, offline_packing_specs=specs)
    return config(**fields, packed_sequence_specs=specs)


def _first(places: tuple[tuple[str, str], ...]) -> Any:
    """The first class that exists in this version, out of (module, name) candidates."""
    for module, name in places:
        with suppress(ModuleNotFoundError, AttributeError):
            return getattr(importlib.import_module(module), name)
    names = " or ".join(f"{module}.{name}" for module, name in places)
    raise UserError(f"this Megatron-Bridge has no {names}", INSTALL)
