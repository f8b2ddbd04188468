"""Fine-tune with transformers' model classes and Trainer, on packed rows whose documents stay apart."""

import numpy as np
from transformers import TrainingArguments

from nemotron_data.formats.packed import PackedRow, read_packed
from nemotron_engines.kernels.packed_attention import attend_by_document
from nemotron_engines.modeling.build import set_threads, starting_model
from nemotron_engines.modeling.head_loss import chunk_head_loss
from nemotron_engines.modeling.packed import keep_apart, require_positions
from nemotron_engines.rows import PackedCollator, PackedRows
from nemotron_engines.transformers.supervised import ScheduledTrainer
from nemotron_engines.transformers.trainer import callbacks, train_to_end, trainer_settings
from nemotron_shared.config.schema import TransformersEngine
from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.tracking.metrics import RESULT_METRICS
from stages.sft.schema import SFTConfig


def train(task: Task[SFTConfig[TransformersEngine]]) -> Outcome:
    """Train on the assistant's tokens of the packed rows."""
    config, run = task.config, task.run
    set_threads(config.run.threads)
    data = task.input("data")
    model = starting_model(task)
    if reason := keep_apart(model):
        run.say(f"the documents of packed rows are computed one by one: {reason}")
    num_rows = config.train.train_iters * config.train.global_batch_size
    vocab_size = model.config.get_text_config().vocab_size
    file, held_out = data.path / "train.parquet", data.path / "valid.parquet"
    packed = read_packed(file)
    rows, others = PackedRows(packed, num_rows, config.run.seed, vocab_size, file), list[PackedRow]()
    valid = None
    if held_out.is_file():
        others = read_packed(held_out)  # of few rows none is read twice
        valid = PackedRows(others, min(len(others), config.train.eval_rows), config.run.seed, vocab_size, held_out)
    else:
        run.say("the valid split is empty: no validation")
    longest = max(int(np.diff([*row.seq_start_id, len(row.input_ids)]).max()) for row in (*packed, *others))
    require_positions(model, longest, "data_prep.pack_size", run.say)
    collate = attend_by_document(model, PackedCollator(tell_padding=True))
    trainer = ScheduledTrainer(
        engine=config.engine,
        model=model,
        args=TrainingArguments(**trainer_settings(config, run, validate=valid is not None)),
        train_dataset=rows,
        eval_dataset=valid,
        data_collator=chunk_head_loss(model, collate),
        callbacks=callbacks(config, run, lambda step: rows.tokens_before(step * config.train.global_batch_size)),
    )
    return train_to_end(trainer, config, run, data.path / "tokenizer", RESULT_METRICS)
