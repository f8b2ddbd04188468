"""The `engine` section of Megatron-Bridge, shared by the pretrain and SFT stages, and the names of its versions.

Our own sections keep their names and meaning; this one holds only Megatron-Bridge's own settings. Set anything without
its own key through `overrides`, under the names of Bridge's ConfigContainer:

    nemotron super3 pretrain -c super3_phase1 ++engine.overrides.model.moe_aux_loss_coeff=1e-3

We test with the pinned pair. A recipe's container may bring an older Bridge (0.4 has the same recipes and the packed
Parquet reader) in which some modules and fields have other names; only this file knows them:

    0.4                                                   0.6
    data.datasets.packed_sequence.PackedSequenceSpecs     data.packing.config.PackedSequenceSpecs
    training.config.FinetuningDatasetConfig               data.builders.GPTSFTDatasetConfig
      packed_sequence_specs=specs                           offline_packing_specs=specs, enable_offline_packing=True

No version takes arguments in its pretraining and fine-tuning recipes, although NVIDIA's YAML passes some to them.
"""

import importlib
import inspect
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from nemotron_engines.overrides import unchecked
from nemotron_shared.config.schema import EngineSection, How, Section
from nemotron_shared.system.errors import UserError, did_you_mean


class MegatronPeft(Section):
    """Adapters on frozen weights."""

    scheme: Literal["lora", "dora"] | None
    """`lora` or `dora`. `null`: train every weight."""
    dim: int = Field(ge=1)
    """Rank of an adapter."""
    alpha: int = Field(ge=1)
    """An adapter's output is scaled by alpha / dim."""
    dropout: float = Field(ge=0, lt=1)
    """Dropout on an adapter's inputs."""
    target_modules: list[str] = Field(min_length=1)
    """Linear layers to adapt, by Megatron's names."""


class MegatronBridgeEngine(EngineSection):
    """Megatron-Bridge: recipes for clusters of GPUs, and a tiny model on a CPU."""

    packed_rows_one_by_one = True
    unused: ClassVar[Mapping[str, str]] = {
        "checkpoint.keep_best": "Megatron-Bridge keeps the newest checkpoints alone",
        "checkpoint.publish_best": "Megatron-Bridge keeps the newest checkpoints alone",
    }

    name: Literal["megatron_bridge"]
    recipe: str | None = Field(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)+$")
    """Function below `megatron.bridge.recipes`, such as `nemotronh.nemotron_3_super.nemotron_3_super_pretrain_config`.
    `null`: a model made from `model.architecture`, with Bridge's general settings."""
    container: How[str | None]
    """Container image that the recipe is made for; not started by the engine. `null`: the environment that runs it."""
    device: How[Literal["auto", "cpu"]]
    """`auto` uses GPUs if there are any. Without one, TE-only settings are switched off, with a notice."""
    world_size: How[int | None] = Field(ge=1)
    """Processes that the layout is made for; an error about a number of processes that does not fit names it. `null`:
    any."""
    tensor_model_parallel_size: How[int] = Field(ge=1)
    """TP: processes that share each large matrix."""
    pipeline_model_parallel_size: How[int] = Field(ge=1)
    """PP: pipeline stages that share the layers."""
    context_parallel_size: How[int] = Field(ge=1)
    """CP: processes that share a row's tokens. Refused in fine-tuning: the packer does not pad."""
    expert_model_parallel_size: How[int] = Field(ge=1)
    """EP: processes that share the experts."""
    expert_tensor_parallel_size: How[int] = Field(ge=1)
    """Processes that share the matrices of each expert."""
    sequence_parallel: How[bool]
    """Split the work between TP's matrices, too. Needs TP above 1; mixture-of-experts training with TP requires it."""
    moe_token_dispatcher_type: How[Literal["allgather", "alltoall", "flex"]]
    """How tokens reach their experts: `allgather`, `alltoall`, or `flex`."""
    moe_flex_dispatcher_backend: How[Literal["deepep", "hybridep", "ncclep"] | None]
    """Library behind `flex`: `deepep`, `hybridep` or `ncclep`."""
    mixed_precision: str | None
    """A precision of Bridge, such as `bf16_mixed` or `bf16_with_fp8_current_scaling_mixed`. `null`: float32."""
    peft: MegatronPeft
    start_from: Literal["weights", "state"]
    """What to load from `run.model`. `weights`: only the weights, with steps counted from 0. `state`: continue a run
    that kept its Megatron checkpoint, with its optimizer, schedule and step."""
    stop_at: int | None = Field(ge=1)
    """Stop after this step, although the schedule extends to `train.train_iters`."""
    keep_checkpoint: bool
    """Put the last Megatron checkpoint into the artifact, as `megatron/`; a run whose `run.model` has one starts from
    it. Refused with adapters: Bridge saves them without the base weights."""
    overrides: dict[str, Any]
    """Fields of Bridge's ConfigContainer by section, such as `{ddp: {overlap_grad_reduce: false}}`."""

    @model_validator(mode="after")
    def possible(self) -> "MegatronBridgeEngine":
        """Require a backend for the flex dispatcher and for no other; and refuse sequence parallelism without tensor
        parallelism, which Megatron would silently turn off."""
        if (self.moe_token_dispatcher_type == "flex") != (self.moe_flex_dispatcher_backend is not None):
            raise ValueError(
                "engine.moe_flex_dispatcher_backend goes with engine.moe_token_dispatcher_type=flex, and only with it"
            )
        if self.sequence_parallel and self.tensor_model_parallel_size == 1:
            raise ValueError("engine.sequence_parallel needs engine.tensor_model_parallel_size above 1")
        return self

    @property
    def notes(self) -> list[str]:
        """A note on keys that were not checked."""
        return unchecked(self.overrides, "Megatron-Bridge")


# Which Megatron-Bridge is installed, and the names that differ between its versions.


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
