"""Fine-tune with transformers' model classes and Trainer, on packed rows whose documents stay apart."""

from transformers import TrainingArguments

from nemotron_data.formats.packed import read_packed
from nemotron_engines.modeling.build import load_tokenizer
from nemotron_engines.modeling.start import starting_model
from nemotron_engines.modeling.threads import set_threads
from nemotron_engines.rows.packed import PackedCollator, PackedRows
from nemotron_engines.transformers.trainer import (
    ScheduledTrainer,
    best_validation,
    callbacks,
    save_result,
    train_to_end,
    trainer_settings,
)
from nemotron_shared.config.schema import TransformersEngine
from nemotron_shared.runtime.metrics import RESULT_METRICS, last_values
from nemotron_shared.runtime.task import Outcome, Task
from stages.sft.schema import SFTConfig

StageTask = Task[SFTConfig[TransformersEngine]]


def train(task: StageTask) -> Outcome:
    """Train on the assistant's tokens of the packed rows."""
    config, run = task.config, task.run
    set_threads(config.run.threads)
    data = task.input("data")
    tokenizer, model = load_tokenizer(data.path / "tokenizer"), starting_model(task)
    num_rows = config.train.train_iters * config.train.global_batch_size
    file, vocab_size = data.path / "train.parquet", model.config.vocab_size
    rows = PackedRows(read_packed(file), num_rows, config.run.seed, vocab_size, file)
    valid = validation_rows(task, vocab_size)
    trainer = ScheduledTrainer(
        model=model,
        args=TrainingArguments(**trainer_settings(config, run, validate=valid is not None)),
        train_dataset=rows,
        eval_dataset=valid,
        data_collator=PackedCollator(tokenizer.pad_token_id),
        callbacks=callbacks(config, run, lambda step: rows.tokens_before(step * config.train.global_batch_size)),
    )
    trainer.stage_config = config
    train_to_end(trainer, run)
    output = save_result(model, data.path / "tokenizer", run)
    figures = last_values(run.metrics, RESULT_METRICS)
    metadata = {"step": config.train.train_iters, "parameters": model.num_parameters()}
    return Outcome(output, metadata | best_validation(config, data.path / "tokenizer", run), figures)


def validation_rows(task: StageTask, vocab_size: int | None = None) -> PackedRows | None:
    """Rows of the validation split; None, said aloud, where it is empty."""
    file = task.input("data").path / "valid.parquet"
    if not file.is_file():
        task.run.say("the valid split is empty: no validation")
        return None
    return PackedRows(read_packed(file), task.config.train.eval_rows, task.config.run.seed, vocab_size, file)
