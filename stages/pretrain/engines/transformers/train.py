"""Pretrain with transformers' NemotronH and Trainer."""

from transformers import TrainingArguments, default_data_collator

from nemotron_data.formats.bin_idx import IndexedDataset, data_set_of, read_blend
from nemotron_engines.modeling.build import set_threads, starting_model
from nemotron_engines.modeling.head_loss import chunk_head_loss
from nemotron_engines.modeling.packed import require_positions
from nemotron_engines.rows import BlendedRows, DocumentRows
from nemotron_engines.transformers.supervised import ScheduledTrainer
from nemotron_engines.transformers.trainer import callbacks, train_to_end, trainer_settings
from nemotron_shared.config.schema import TransformersEngine
from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.tracking.metrics import RESULT_METRICS
from stages.pretrain.schema import PretrainConfig

StageTask = Task[PretrainConfig[TransformersEngine]]


def train(task: StageTask) -> Outcome:
    """Train from random weights, or on from a model, on rows cut from the shuffled documents."""
    config, run = task.config, task.run
    set_threads(config.run.threads)
    data, model = task.input("data"), starting_model(task)
    require_positions(model, config.train.seq_length, "train.seq_length", run.say)
    vocab_size = model.config.get_text_config().vocab_size
    rows = _rows(task, "train", config.train.train_iters * config.train.global_batch_size, vocab_size)
    valid = _rows(task, "valid", config.train.eval_rows, vocab_size)
    trainer = ScheduledTrainer(
        engine=config.engine,
        model=model,
        args=TrainingArguments(**trainer_settings(config, run, validate=valid is not None)),
        train_dataset=rows,
        eval_dataset=valid,
        data_collator=chunk_head_loss(model, default_data_collator),
        callbacks=callbacks(config, run, lambda step: step * config.train.global_batch_size * config.train.seq_length),
    )
    return train_to_end(trainer, config, run, data.path / "tokenizer", RESULT_METRICS)


def _rows(task: StageTask, split: str, num_rows: int, vocab_size: int) -> BlendedRows | None:
    """Rows of one split in the proportions of the blend; None, said aloud, where the split is empty."""
    folder = task.input("data").path
    entries = read_blend(folder / "blend.json").get(split)
    if not entries:
        task.run.say(f"the {split} split is empty")
        return None
    seq_length, seed = task.config.train.seq_length, task.config.run.seed
    parts = [DocumentRows([IndexedDataset(prefix)], seq_length, num_rows, seed, vocab_size) for _, prefix in entries]
    rows = BlendedRows(parts, [weight for weight, _ in entries], num_rows)
    shares: dict[str, float] = {}  # shards of one data set together
    for (_, prefix), share in zip(entries, rows.realised_shares(), strict=True):
        name = data_set_of(prefix.relative_to(folder).as_posix(), split)
        shares[name] = shares.get(name, 0) + share
    if len(shares) > 1:
        task.run.say(f"{split}: " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items()))
    return rows
