"""Our settings for a Hugging Face Trainer, the learning rate, and the loop: resume, train, stop or finish.

The rate is a share of the peak: warmup, then constant ─────, linear ╲, cosine ╰╮ or WSD ────╲
"""

import logging
import math
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback, Trainer, TrainingArguments

from nemotron_data.tokenizers.folder import copy_tokenizer
from nemotron_engines.lora import export
from nemotron_engines.lora.adapt import AdaptersReached, count, table
from nemotron_engines.lora.kinds import without_adapters
from nemotron_engines.modeling import roles, sharded
from nemotron_engines.modeling.build import save_model
from nemotron_engines.modeling.loaded import change_type, own_types, type_to_save
from nemotron_engines.modeling.mtp import class_of
from nemotron_engines.transformers.callback import OwnTokens, RunCallback, TensorBoardMetrics
from nemotron_engines.transformers.checkpoints import LAYOUT, InterruptibleTrainer, checkpoint_bytes, save_or_explain
from nemotron_shared.config.schema import LocalEngine
from nemotron_shared.config.training import OptimizerSection, SchedulerSection, TrainingConfig
from nemotron_shared.engine import checkpoints
from nemotron_shared.engine.checkpoints import Validation, report_best
from nemotron_shared.engine.spec import Outcome
from nemotron_shared.models.weights import ADAPTER, ADAPTER_WEIGHTS
from nemotron_shared.system import disk, distributed
from nemotron_shared.system.atomic import link_or_copy
from nemotron_shared.system.console import from_here
from nemotron_shared.system.stop import Interrupted, Stopped
from nemotron_shared.tracking.metrics import Metric, last_values
from nemotron_shared.tracking.run import Run

# Learning rate over steps, as a share of the peak.


def learning_rate_factor(
    optimizer: OptimizerSection, scheduler: SchedulerSection, train_iters: int
) -> Callable[[int], float]:
    """A function from the step (0 for the first) to the factor on `optimizer.lr`."""
    floor = optimizer.min_lr / optimizer.lr
    scheduler = scheduler.fitted(train_iters)
    warmup = scheduler.lr_warmup_iters

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        progress = (step - warmup) / (train_iters - warmup)
        if scheduler.lr_decay_style == "WSD":
            decay_from = train_iters - scheduler.lr_wsd_decay_iters
            progress = max(0.0, (step - decay_from) / max(1, scheduler.lr_wsd_decay_iters))
        # remaining share of the peak above the floor after `progress` (0 to 1) of the decay
        progress = min(1.0, progress)
        left = {
            "constant": 1.0,
            "cosine": 0.5 * (1 + math.cos(math.pi * progress)),
            "WSD": 1 - math.sqrt(progress),
            "linear": 1 - progress,
        }[scheduler.lr_decay_style]
        return floor + (1 - floor) * left

    return factor


class StageTrainer(InterruptibleTrainer):
    """Changes that all our Trainers make to the library's: schedule, resume and stop."""

    stage_config: TrainingConfig[LocalEngine]
    _parameters: list[torch.nn.Parameter] | None = None

    def __init__(self, *args: Any, model: Any, **kwargs: Any) -> None:
        own = OwnTokens(without_adapters(model))  # TRL changes them here already
        if (told := kwargs.get("args")) is not None:  # the library would copy the model to every GPU that is seen
            told._n_gpu = min(told.n_gpu, 1)
        super().__init__(*args, model=model, **kwargs)  # ty: ignore[unknown-argument]
        self.add_callback(own)  # ty: ignore[missing-attribute]

    def floating_point_ops(self, inputs: Any) -> int:
        """Skip the library's count of all parameters at each step, which serves an unused metric."""
        return 0

    def get_decay_parameter_names(self, model: torch.nn.Module) -> list[str]:
        """The parameters that weight decay applies to, by their role; the library goes by names, and decays norms."""
        return roles.decayed(model)

    def _clip_grad_norm(self, model: torch.nn.Module) -> torch.Tensor:
        """Clip like the library, but find the parameters once; it searches all modules three times per step."""
        if distributed.world_size() > 1:
            return super()._clip_grad_norm(model)  # ty: ignore[missing-attribute]
        if self._parameters is None:
            self._parameters = list(model.parameters())
        return torch.nn.utils.clip_grad_norm_(self._parameters, self.args.max_grad_norm)  # ty: ignore[missing-attribute]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save like the library, if there is room; a full disk raises one error, and nothing is lost."""
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"  # ty: ignore[missing-attribute]
        needed = checkpoint_bytes(self.model, self.optimizer)  # ty: ignore[missing-attribute]
        save_or_explain(folder, needed, lambda: super(StageTrainer, self)._save_checkpoint(model, trial))  # ty: ignore[missing-attribute]

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save only the adapters, if there are any; resuming loads the base weights from the starting model."""
        model = self.model  # ty: ignore[missing-attribute]
        if not isinstance(model, PeftModel):
            super()._save(output_dir, state_dict)  # ty: ignore[missing-attribute]
            return
        assert output_dir is not None, "the Trainer names the checkpoint's folder"
        export.save_adapter(model, Path(output_dir), model.name_or_path or None)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Skip a sharded model, whose processes write their weights together with the optimizer."""
        if not self._in_shards:
            super().save_model(output_dir, _internal_call)  # ty: ignore[missing-attribute]

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self._in_shards:
            super()._save_optimizer_and_scheduler(output_dir)  # ty: ignore[missing-attribute]
            return
        sharded.save_state(Path(output_dir), self.model, self.optimizer)  # ty: ignore[missing-attribute]
        if distributed.rank() == 0:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / "scheduler.pt")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None or not self._in_shards:
            super()._load_optimizer_and_scheduler(checkpoint)  # ty: ignore[missing-attribute]
        else:
            sharded.load_optimizer(Path(checkpoint), self.model, self.optimizer)  # ty: ignore[missing-attribute]
            self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / "scheduler.pt", weights_only=True))
        if checkpoint is not None:
            follow(self.lr_scheduler)

    @property
    def _in_shards(self) -> bool:
        """Whether checkpoints are sharded; the model itself is not with a single process."""
        return self.stage_config.engine.strategy == "fsdp2"

    def create_accelerator_and_postprocess(self) -> None:
        """Like the library, but without wrapping a sharded model again."""
        super().create_accelerator_and_postprocess()  # ty: ignore[missing-attribute]
        sharded.prepare_sharded(self)

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> LambdaLR:
        """The schedule of the config instead of the Trainer's."""
        config = self.stage_config
        factor = learning_rate_factor(config.optimizer, config.scheduler, config.train.train_iters)
        self.lr_scheduler = LambdaLR(optimizer or self.optimizer, factor)  # ty: ignore[missing-attribute]
        return self.lr_scheduler

    def class_of_model(self) -> Any:
        """The class that loads a checkpoint."""
        return class_of(self.stage_config.engine)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load every weight, or fail.

        Checkpoints use the names of the published models, which differ from those in memory. The Trainer's own loader
        matches names in memory, finds few, and silently keeps the model's previous weights.
        """
        if self._in_shards:
            sharded.load_weights(Path(resume_from_checkpoint), self.model)  # ty: ignore[missing-attribute]
            return
        if isinstance(self.model, PeftModel):  # ty: ignore[missing-attribute]
            export.load_adapter(self.model, Path(resume_from_checkpoint))  # ty: ignore[missing-attribute]
            return
        with self.stage_run.interruptible():
            saved = self.class_of_model().from_pretrained(
                resume_from_checkpoint, dtype=torch.float32, trust_remote_code=False
            )
        (model or self.model).load_state_dict(saved.state_dict(), strict=True)  # ty: ignore[missing-attribute]


def follow(scheduler: LambdaLR) -> None:
    """Set the optimizer's learning rate for the next step from this schedule.

    A checkpoint holds the rate of the previous schedule: an extended training would make its first step with the last
    and lowest rate of the shorter one.
    """
    for place, group in enumerate(scheduler.optimizer.param_groups):
        rate = scheduler.base_lrs[place] * scheduler.lr_lambdas[place](scheduler.last_epoch)
        group["lr"] = scheduler._last_lr[place] = rate


def trainer_settings(config: TrainingConfig[LocalEngine], run: Run, *, validate: bool) -> dict[str, Any]:
    """Keyword arguments for TrainingArguments, or a class derived from it."""
    rows, processes = config.rows_per_step, distributed.world_size()
    micro = config.micro_rows(processes)
    # Name of activation checkpointing in this version of transformers; the older name is deprecated in newer ones.
    names = {field.name for field in fields(TrainingArguments)}
    checkpointing = "activation_checkpointing" if "activation_checkpointing" in names else "gradient_checkpointing"
    return {
        "output_dir": str(run.checkpoints),
        "max_steps": config.train.train_iters,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": rows // (micro * processes),
        "optim": {"adamw": "adamw_torch_fused", "adamw_8bit": "adamw_bnb_8bit"}[config.engine.optimizer],
        "learning_rate": config.optimizer.lr,
        "weight_decay": config.optimizer.weight_decay,
        "adam_beta1": config.optimizer.adam_beta1,
        "adam_beta2": config.optimizer.adam_beta2,
        "adam_epsilon": config.optimizer.adam_eps,
        "max_grad_norm": config.optimizer.clip_grad,
        "eval_strategy": "steps" if validate else "no",
        "eval_steps": config.train.eval_interval,
        "per_device_eval_batch_size": micro,
        "save_strategy": "steps",
        "save_steps": config.checkpoint.save_interval,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "report_to": [],
        "seed": config.run.seed,
        "use_cpu": config.engine.device == "cpu" or not torch.cuda.is_available(),
        "bf16": config.engine.dtype == "bfloat16",
        checkpointing: config.engine.gradient_checkpointing,
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "remove_unused_columns": False,
        "save_total_limit": None,
        "ddp_find_unused_parameters": False,
    }


def callbacks(config: TrainingConfig, run: Run, tokens_at: Callable[[int], int] | None) -> list[Any]:
    """Our callback, and TensorBoard if configured."""
    chosen: list[Any] = [RunCallback(run, config.logger.log_interval, config.checkpoint, tokens_at)]
    if config.logger.tensorboard and distributed.rank() == 0:
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(run.directory / "tensorboard"))
        chosen.append(TensorBoardMetrics(writer, config.logger.log_interval, run.completions))
    return chosen


UNTRUE = ("trainer_state.json", "has new PAD/BOS/EOS tokens")
"""Parts of the library's warnings about what is otherwise here."""


def train_to_end(
    stage_trainer: StageTrainer,
    config: TrainingConfig[LocalEngine],
    run: Run,
    tokenizer: Path,
    metrics: Mapping[Metric, str],
) -> Outcome:
    """Continue from the newest whole checkpoint, or from the start, train to the last step, and save the model.

    Args:
        tokenizer: folder of the tokenizer's files.
        metrics: last values for the manifest, with their names there.

    Raises:
        Stopped: a signal asked to stop; the last finished step has a checkpoint.
        UserError: all checkpoints are damaged, the disk is full, a metric is not finite, or steps were skipped.
    """
    assert isinstance(stage_trainer, Trainer)  # every StageTrainer is mixed into one
    trainer, stage_trainer.stage_run, stage_trainer.stage_config = stage_trainer, run, config
    trainer.remove_callback(PrinterCallback)
    model: Any = trainer.model
    trained, total = count(model)
    if (section := config.engine.peft) is not None:
        trainer.add_callback(AdaptersReached())
        for line in table(model, section):
            run.say(line)
    if config.engine.strategy == "fsdp2" or distributed.world_size() > 1:
        run.say(distributed.spread(config.engine.strategy))
    # Intervals may change between attempts, and the current ones count; and special tokens stay as they were.
    warnings = logging.getLogger("transformers.trainer_utils")
    warnings.addFilter(lambda record: not any(words in record.getMessage() for words in UNTRUE))
    checkpoint = distributed.on_rank_zero(lambda: checkpoints.resume_point(run.checkpoints, LAYOUT, run.say))
    if checkpoint is not None:
        run.goes_on_from(checkpoints.step_of(checkpoint))
    with run.watched(), disk.full_disk_explained(run.directory):
        try:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        except Interrupted:
            stage_trainer.save_last_step()
            raise Stopped(
                f"[{run.name}] stopped after step {trainer.state.global_step} of {trainer.state.max_steps}",
                "run the same command again to continue",
            ) from None
    if distributed.any_rank(run.stop_requested):
        raise run.stopped()  # the last step has its checkpoint; a rerun only publishes
    run.require_all_steps(trainer.state.global_step, config.train.train_iters)
    better = distributed.on_rank_zero(lambda: checkpoints.best_to_publish(run, LAYOUT, config.checkpoint.publish_best))

    def keep(best: Validation) -> str:
        if not config.checkpoint.keep_best:
            return ""
        held = checkpoints.best(run.checkpoints, LAYOUT)
        if better is not None:
            last = checkpoints.latest(run.checkpoints, LAYOUT)
            return _keep(last, run.directory / LAST, model, tokenizer) if last else ""
        if held is None or held[1] != best:
            return ""  # that validation came before the oldest remaining checkpoint
        return _keep(held[0], run.directory / BEST, model, tokenizer)

    metadata: dict[str, Any] = {
        "step": trainer.state.global_step,
        "parameters": total - (trained if config.engine.peft else 0),
    }
    metadata |= {"trained_parameters": trained} if config.engine.peft else {}
    validated: Any = trainer.eval_dataset
    prompts = None if validated is None else len(validated)
    metadata |= distributed.on_rank_zero(lambda: report_best(run, keep, better[1] if better else None, prompts))
    if better is not None:
        stage_trainer._load_from_checkpoint(str(better[0]))
        metadata["step"] = checkpoints.step_of(better[0])
    weights = sharded.weights_of(model)
    output = distributed.on_rank_zero(
        lambda: _save(model, weights, run, tokenizer, config.engine.save_dtype)
    )  # the other ranks wait
    return Outcome(output, metadata, last_values(run.metrics, metrics, metadata["step"]))


def _save(
    model: Any, gathered: dict[str, torch.Tensor] | None, run: Run, tokenizer: Path, save_dtype: str | None
) -> Path:
    """Write the trained model into a new folder, if there is room; adapters go into a separate folder.

    Raises:
        UserError: the disk is full, or adapters cannot be merged.
    """
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    disk.require_room(run.directory, int(1.1 * weights), "the trained model")
    with disk.full_disk_explained(run.output):
        output = run.fresh_output()
        if isinstance(model, PeftModel):
            export.save_adapter(model, output / ADAPTER, model.name_or_path or None)
            model, error = export.merged(model)
            run.say(f"adapters merged: this changes the logits by {error:.1e} of their norm")
        kind, own = type_to_save(save_dtype, model.name_or_path), own_types(model.name_or_path)
        if save_dtype:  # for all but those that the folder keeps in more bits
            own = {name: one for name, one in own.items() if one == torch.float32}
        if kind is not None and kind != model.dtype:
            as_told = "engine.save_dtype" if save_dtype else "as in the starting model"
            run.say(f"weights: {model.dtype} in training, {kind} as published ({as_told})".replace("torch.", ""))
        if kind is not None and (kind != model.dtype or own):
            change_type(model, gathered, kind, own)
        save_model(model, tokenizer, output, gathered)
    return output


BEST, LAST = "best", "last"
"""Folders in the run's, for the model that is not published."""


def _keep(checkpoint: Path, folder: Path, model: Any, tokenizer: Path) -> str:
    """Make a model folder of a checkpoint that is not published; returns a line with its path.

    For a training with adapters, the folder holds only these.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if (checkpoint / sharded.FOLDER).is_dir():
        save_model(model, tokenizer, folder, sharded.weights_in(checkpoint, model))
    else:
        # Link, because the checkpoint will be deleted, and a copy would need space.
        for path in (*checkpoint.glob("*.safetensors*"), *checkpoint.glob("*config.json")):
            link_or_copy(path, folder / path.name)
        copy_tokenizer(tokenizer, folder)
    step = f"step {checkpoints.step_of(checkpoint)}"
    if (folder / ADAPTER_WEIGHTS).is_file():
        return f"the adapter of {step} stays in {from_here(folder)}"
    shown = from_here(folder)
    typed = shown if Path(shown).is_absolute() else f"./{shown}"  # or it would be the name of an artifact
    return f"the model of {step} stays: nemotron chat {shlex.quote(typed)}"
