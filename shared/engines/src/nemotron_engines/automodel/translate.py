"""Translate our sections to Automodel's recipe.

translate(config, places, processes) -> {"step_scheduler": {"max_steps": 300, ...}, "model": {...}, "peft": {...}, ...}
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nemotron_engines.automodel.settings import AutomodelEngine
from nemotron_shared.config.training import PretrainTrain, SupervisedConfig

OURS = "nemotron_engines.automodel.data"
AUTOMODEL = "nemo_automodel.components"
# Automodel's fused Mamba call reads out_proj's weight without calling the module, so an adapter there never trains.
PASSED_BY = "*.out_proj"
WSD_SHAPE = "minus_sqrt"  # the shape of training/schedule.py


Kind = Literal["packed", "chat", "documents"]


@dataclass(frozen=True)
class Places:
    """Paths that a run reads and writes.

    `model` is a Hugging Face folder. `kind` says what `train` and `valid` are: files of packed rows, files of chats, or
    twice the blend.json of documents; `valid` is None without validation data. `run` is the run folder.
    """

    model: Path
    tokenizer: Path
    checkpoints: Path
    train: Path
    valid: Path | None
    kind: Kind
    restore_from: str | None = None
    run: Path | None = None


def translate(
    config: SupervisedConfig[AutomodelEngine], places: Places, processes: int, *, on_gpu: bool
) -> dict[str, Any]:
    """The recipe's configuration, without `engine.overrides`."""
    engine = config.engine
    ours = config.optimizer
    recipe: dict[str, Any] = {
        "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
        "seed": config.run.seed,
        "dist_env": {"backend": "nccl" if on_gpu else "gloo", "timeout_minutes": 10},
        "step_scheduler": step_scheduler(config, processes),
        "model": {  # Automodel's own NemotronH class with the weights of the folder
            "_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
            "pretrained_model_name_or_path": str(places.model),
            "torch_dtype": engine.weights_dtype,
            "force_hf": False,
            "backend": {
                "_target_": f"{AUTOMODEL}.models.common.utils.BackendConfig",
                **engine.backend.model_dump(),
            },
        },
        "distributed": distributed(engine),
        "optimizer": {
            "_target_": "torch.optim.AdamW",
            "lr": ours.lr,
            "betas": [ours.adam_beta1, ours.adam_beta2],
            "eps": ours.adam_eps,
            "weight_decay": ours.weight_decay,
        },
        "lr_scheduler": lr_scheduler(config),
        "clip_grad_norm": {"max_norm": ours.clip_grad},
        "loss_fn": {"_target_": f"{AUTOMODEL}.loss.masked_ce.MaskedCrossEntropy"},
        "checkpoint": {
            "enabled": True,
            "checkpoint_dir": str(places.checkpoints),
            "model_save_format": "safetensors",
            "save_consolidated": "final",
            "max_recent_checkpoints": None,  # older ones are deleted once the new one is verified; see recipe.py
            "restore_from": places.restore_from,
        },
        **data(config, places),
    }
    if config.logger.wandb_project is not None:
        recipe["wandb"] = {"project": config.logger.wandb_project, "entity": config.logger.wandb_entity}
        recipe["wandb"] |= (
            {"name": config.logger.wandb_name or places.run.name, "dir": str(places.run)} if places.run else {}
        )
    if engine.peft is not None:
        # `match_all_linear` becomes a list of exclusions, because Automodel does not combine the two
        everywhere = engine.peft.match_all_linear
        recipe["peft"] = engine.peft.model_dump() | {
            "_target_": f"{AUTOMODEL}._peft.lora.PeftConfig",
            "match_all_linear": False,
            "exclude_modules": [PASSED_BY, *engine.peft.exclude_modules] if everywhere else [],
        }
    return recipe


def step_scheduler(config: SupervisedConfig[AutomodelEngine], processes: int) -> dict[str, Any]:
    """Batches, lengths and intervals; one epoch has exactly the configured steps."""
    train, engine = config.train, config.engine
    return {
        "global_batch_size": train.global_batch_size,
        "local_batch_size": config.micro_rows(processes // (engine.tp_size * engine.cp_size)),
        "max_steps": train.train_iters,
        "num_epochs": None if engine.data == "chat" else 1,
        "ckpt_every_steps": config.checkpoint.save_interval,
        "val_every_steps": train.eval_interval,
        "save_checkpoint_every_epoch": engine.data == "chat",
        "preemption_signal": None,  # the scheduler gets our own flag instead; see recipe.py
    }


def distributed(engine: AutomodelEngine) -> dict[str, Any]:
    """Parallel layout. By default fsdp2 computes in bfloat16, so dtypes are always explicit."""
    spread: dict[str, Any] = {"strategy": engine.strategy, "dp_size": None, "tp_size": engine.tp_size}
    if engine.activation_checkpointing:
        spread["activation_checkpointing"] = True
    if engine.strategy == "ddp":
        return spread
    return spread | {
        "cp_size": engine.cp_size,
        "ep_size": engine.ep_size,
        "mp_policy": {
            "_target_": "torch.distributed.fsdp.MixedPrecisionPolicy",
            "param_dtype": engine.dtype,
            "reduce_dtype": "float32",
            "output_dtype": "float32",
            "cast_forward_inputs": False,
        },
    }


def lr_scheduler(config: SupervisedConfig[AutomodelEngine]) -> dict[str, Any]:
    """The curve of training/schedule.py: step s of w warmup steps has (s + 1) / (w + 1) of the peak."""
    ours, scheduler = config.optimizer, config.schedule
    return {
        "lr_decay_style": scheduler.lr_decay_style,
        "lr_warmup_steps": scheduler.lr_warmup_iters,
        "lr_decay_steps": config.train.train_iters,
        "init_lr": ours.lr / (scheduler.lr_warmup_iters + 1),
        "max_lr": ours.lr,
        "min_lr": ours.min_lr,
        "wsd_decay_steps": max(1, scheduler.lr_wsd_decay_iters),
        "lr_wsd_decay_style": WSD_SHAPE,
    }


def data(config: SupervisedConfig[AutomodelEngine], places: Places) -> dict[str, Any]:
    """Data sets and loaders for training and, if there is a file, for validation.

    Packed rows and documents are already shuffled, so Automodel's loader must not shuffle them; its ChatDataset is
    shuffled by its own loader. Checkpoints keep a loader's position.
    """
    train, seed, chats = config.train, config.run.seed, config.engine.chats
    tokenizer = {
        "_target_": "nemo_automodel._transformers.auto_tokenizer.NeMoAutoTokenizer.from_pretrained",
        "pretrained_model_name_or_path": str(places.tokenizer),
    }
    sections: dict[str, Any] = {}
    for split, file in (("train", places.train), ("valid", places.valid)):
        if file is None:
            continue
        rows = train.train_iters * train.global_batch_size if split == "train" else train.eval_rows
        dataset: dict[str, Any] = {"tokenizer": tokenizer}
        if places.kind == "packed":
            dataset |= {"_target_": f"{OURS}.packed_rows", "path": str(file), "num_rows": rows}
            dataset |= {"seed": seed}
            collate = f"{OURS}.collate"
        elif places.kind == "documents":
            assert isinstance(train, PretrainTrain), "only pretraining reads documents"
            dataset |= {"_target_": f"{OURS}.document_rows", "blend": str(file), "part": split, "num_rows": rows}
            dataset |= {"seed": seed, "seq_length": train.seq_length}
            collate = "torch.utils.data.default_collate"
        else:
            wanted = "train" if split == "train" else f"train[:{rows}]"
            dataset |= {"_target_": f"{AUTOMODEL}.datasets.llm.chat_dataset.ChatDataset", "split": wanted}
            dataset |= {"path_or_dataset_id": str(file), "seq_length": chats.seq_length, "truncation": True}
            collate = f"{AUTOMODEL}.datasets.utils.default_collater"
        prefix = "" if split == "train" else "validation_"
        sections[f"{prefix}dataset"] = dataset
        sections[f"{prefix}dataloader"] = {
            "_target_": "torchdata.stateful_dataloader.StatefulDataLoader",
            "collate_fn": collate,
            "shuffle": places.kind == "chat" and split == "train",
        }
    if places.kind == "chat" and chats.pack:
        sections["packed_sequence"] = {"packed_sequence_size": chats.seq_length, "packing_strategy": "neat"}
    return sections
