"""Our prepared data as Bridge's data sets: token shards for pretraining, packed Parquet for fine-tuning."""

from pathlib import Path
from typing import Any

from nemotron_data.formats.bin_idx import SPLITS, read_blend
from nemotron_engines.megatron_bridge.settings import MegatronBridgeEngine
from nemotron_engines.megatron_bridge.splits import unpadded
from nemotron_engines.megatron_bridge.versions import packed_dataset
from nemotron_shared.config.training import PretrainTrain, SupervisedConfig
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.spec import Task


def set_token_shards(container: Any, data: Path, task: Task[SupervisedConfig[MegatronBridgeEngine]]) -> bool:
    """Give blend.json to the pretraining data set; says whether there is a validation split.

    The index that Megatron makes of the shards goes into the run's folder: an artifact is never written to.
    """
    dataset, train = container.dataset, task.config.train
    assert isinstance(train, PretrainTrain), "only pretraining reads token shards"
    dataset.seq_length = train.seq_length
    dataset.blend, dataset.split = None, None
    dataset.blend_per_split = blend_per_split(data / "blend.json")
    dataset.path_to_cache = str(task.run.directory / "megatron_index")
    dataset.random_seed = task.config.run.seed
    return dataset.blend_per_split[1] is not None


def blend_per_split(path: Path) -> list[tuple[list[str], list[float]] | None]:
    """(prefixes, weights) of train, valid and test; None for an empty split.

    Raises:
        UserError: blend.json is damaged, or its train split is empty.
    """
    blend = read_blend(path)
    if not blend.get("train"):
        raise UserError(f"{path}: the train split is empty", "prepare more data, or enlarge data_prep.split.train")
    pairs = [blend.get(split) for split in SPLITS]
    return [([str(prefix) for _, prefix in one], [weight for weight, _ in one]) if one else None for one in pairs]


def set_packed_rows(container: Any, data: Path, task: Task[SupervisedConfig[MegatronBridgeEngine]]) -> bool:
    """Give the packed Parquet files to the fine-tuning data set; says whether there is a validation split.

    Raises:
        UserError: the layout needs sequences padded to a multiple, which the packer does not do.
    """
    config, size = task.config, int(task.input("data").manifest.metadata["pack_size"])
    engine = config.engine
    for problem in unpadded(engine):
        raise UserError(problem.message, problem.remedy)
    parts = engine.tensor_model_parallel_size if engine.sequence_parallel else 1
    if size % parts:
        what = f"a pack of {size} tokens cannot be split over {parts} processes (engine.sequence_parallel)"
        raise UserError(what, f"prepare the data with a data_prep.pack_size that is a multiple of {parts}")
    train, valid = data / "train.parquet", data / "valid.parquet"
    found = valid if valid.is_file() else None
    container.dataset = packed_dataset(
        train,
        found,
        size,
        task.run.directory,
        seed=config.run.seed,
        max_train_samples=container.train.train_iters * config.train.global_batch_size,
        do_test=False,
    )
    return found is not None
