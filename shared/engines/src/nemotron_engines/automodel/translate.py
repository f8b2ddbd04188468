"""Our sections in the words of Automodel's recipe.

translate(config, places, processes) -> {"step_scheduler": {"max_steps": 300, ...}, "model": {...}, "peft": {...}, ...}
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nemotron_engines.automodel.settings import AutomodelEngine, AutomodelPeft
from nemotron_shared.config.training import PretrainTrain, SupervisedConfig

OURS = "nemotron_engines.automodel.data"
AUTOMODEL = "nemo_automodel.components"
# Automodel's fused Mamba call takes the weight of out_proj past the module, so an adapter there would learn nothing.
PASSED_BY = "*.out_proj"
WSD_SHAPE = "minus_sqrt"  # the shape of training/schedule.py


Kind = Literal["packed", "chat", "documents"]


@dataclass(frozen=True)
class Places:
    """Where a run reads and writes.

    `model` is a Hugging Face folder. `kind` says what `train` and `valid` are: files of packed rows or of chats, or the
    two times the blend.json of documents; `valid` is None where there are none.
    """

    model: Path
    tokenizer: Path
    checkpoints: Path
    train: Path
    valid: Path | None
    pad_token_id: int
    kind: Kind
    restore_from: str | None = None


def translate(
    config: SupervisedConfig[AutomodelEngine], places: Places, processes: int, *, on_gpu: bool
) -> dict[str, Any]:
    """The recipe's configuration, without `engine.overrides`."""
    engine = config.engine
    recipe: dict[str, Any] = {
        "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
        "seed": config.run.seed,
        "dist_env": {"backend": "nccl" if on_gpu else "gloo", "timeout_minutes": 10},
        "step_scheduler": step_scheduler(config, processes),
        "model": model(engine, places),
        "distributed": distributed(engine),
        "optimizer": optimizer(config),
        "lr_scheduler": lr_scheduler(config),
        "clip_grad_norm": {"max_norm": config.optimizer.clip_grad},
        "loss_fn": {"_target_": f"{AUTOMODEL}.loss.masked_ce.MaskedCrossEntropy"},
        "checkpoint": {
            "enabled": True,
            "checkpoint_dir": str(places.checkpoints),
            "model_save_format": "safetensors",
            "save_consolidated": "final",
            "max_recent_checkpoints": None,  # older ones go once the new one is verified; see recipe.py
            "restore_from": places.restore_from,
        },
        **data(config, places),
    }
    if engine.peft is not None:
        recipe["peft"] = peft(engine.peft)
    return recipe


def step_scheduler(config: SupervisedConfig[AutomodelEngine], processes: int) -> dict[str, Any]:
    """Batches, lengths and intervals; one epoch holds exactly the configured steps."""
    train, engine = config.train, config.engine
    readers = processes // (engine.tp_size * engine.cp_size)
    local = train.micro_batch_size or max(1, train.global_batch_size // max(1, readers))
    return {
        "global_batch_size": train.global_batch_size,
        "local_batch_size": local,
        "max_steps": train.train_iters,
        "num_epochs": None if engine.data == "chat" else 1,
        "ckpt_every_steps": config.checkpoint.save_interval,
        "val_every_steps": train.eval_interval,
        "save_checkpoint_every_epoch": engine.data == "chat",
        "preemption_signal": None,  # our own flag is handed to the scheduler instead; see recipe.py
    }


def model(engine: AutomodelEngine, places: Places) -> dict[str, Any]:
    """Automodel's own NemotronH class with the weights of the folder, in float32."""
    backend = {"_target_": f"{AUTOMODEL}.models.common.utils.BackendConfig", **engine.backend.model_dump()}
    return {
        "_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
        "pretrained_model_name_or_path": str(places.model),
        "torch_dtype": "float32",
        "force_hf": False,
        "backend": backend,
    }


def distributed(engine: AutomodelEngine) -> dict[str, Any]:
    """How the work is spread. Left to itself fsdp2 computes in bfloat16, so the types are always spelled out."""
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


def optimizer(config: SupervisedConfig[AutomodelEngine]) -> dict[str, Any]:
    """AdamW."""
    ours = config.optimizer
    return {
        "_target_": "torch.optim.AdamW",
        "lr": ours.lr,
        "betas": [ours.adam_beta1, ours.adam_beta2],
        "eps": ours.adam_eps,
        "weight_decay": ours.weight_decay,
    }


def lr_scheduler(config: SupervisedConfig[AutomodelEngine]) -> dict[str, Any]:
    """The curve of training/schedule.py: step s of w warmup steps has (s + 1) / (w + 1) of the peak."""
    ours, scheduler, steps = config.optimizer, config.scheduler, config.train.train_iters
    return {
        "lr_decay_style": scheduler.lr_decay_style,
        "lr_warmup_steps": scheduler.lr_warmup_iters,
        "lr_decay_steps": max(steps, scheduler.lr_warmup_iters + 1),
        "init_lr": ours.lr / (scheduler.lr_warmup_iters + 1),
        "max_lr": ours.lr,
        "min_lr": ours.min_lr,
        "wsd_decay_steps": max(1, scheduler.lr_wsd_decay_iters),
        "lr_wsd_decay_style": WSD_SHAPE,
    }


def peft(section: AutomodelPeft) -> dict[str, Any]:
    """`match_all_linear` becomes a list of exclusions, because Automodel takes no exclusions beside the former."""
    excluded = [PASSED_BY, *section.exclude_modules] if section.match_all_linear else []
    return {
        "_target_": f"{AUTOMODEL}._peft.lora.PeftConfig",
        "match_all_linear": False,
        "target_modules": section.target_modules,
        "exclude_modules": excluded,
        "dim": section.dim,
        "alpha": section.alpha,
        "dropout": section.dropout,
        "use_triton": section.use_triton,
    }


def data(config: SupervisedConfig[AutomodelEngine], places: Places) -> dict[str, Any]:
    """Data sets and loaders, for training and, where there is a file, for validation."""
    make = MAKERS[places.kind]
    rows = config.train.train_iters * config.train.global_batch_size
    sections = make(config, places, places.train, rows, "")
    if places.valid is not None:
        sections |= make(config, places, places.valid, config.train.eval_rows, "validation_")
    if places.kind == "chat" and config.engine.chats.pack:
        sections["packed_sequence"] = {
            "packed_sequence_size": config.engine.chats.seq_length,
            "packing_strategy": "neat",
        }
    return sections


def tokenizer(places: Places) -> dict[str, Any]:
    """The tokenizer that lies beside the data."""
    return {
        "_target_": "nemo_automodel._transformers.auto_tokenizer.NeMoAutoTokenizer.from_pretrained",
        "pretrained_model_name_or_path": str(places.tokenizer),
    }


def packed_data(
    config: SupervisedConfig[AutomodelEngine], places: Places, file: Path, rows: int, prefix: str
) -> dict[str, Any]:
    """Our packed rows in our own order, so that Automodel's loader must not shuffle them."""
    dataset = {
        "_target_": f"{OURS}.packed_rows",
        "path": str(file),
        "num_rows": rows,
        "seed": config.run.seed,
        "pad_token_id": places.pad_token_id,
        "tokenizer": tokenizer(places),
    }
    return {f"{prefix}dataset": dataset, f"{prefix}dataloader": loader(f"{OURS}.collate", shuffle=False)}


def chat_data(
    config: SupervisedConfig[AutomodelEngine], places: Places, file: Path, rows: int, prefix: str
) -> dict[str, Any]:
    """Automodel's ChatDataset, shuffled by its own loader."""
    dataset = {
        "_target_": f"{AUTOMODEL}.datasets.llm.chat_dataset.ChatDataset",
        "path_or_dataset_id": str(file),
        "split": f"train[:{rows}]" if prefix else "train",
        "seq_length": config.engine.chats.seq_length,
        "truncation": True,
        "tokenizer": tokenizer(places),
    }
    collate = f"{AUTOMODEL}.datasets.utils.default_collater"
    return {f"{prefix}dataset": dataset, f"{prefix}dataloader": loader(collate, shuffle=not prefix)}


def document_data(
    config: SupervisedConfig[AutomodelEngine], places: Places, file: Path, rows: int, prefix: str
) -> dict[str, Any]:
    """Rows cut from the shuffled documents of a blend, in our own order."""
    assert isinstance(config.train, PretrainTrain), "only pretraining reads documents"
    dataset = {
        "_target_": f"{OURS}.document_rows",
        "blend": str(file),
        "part": "valid" if prefix else "train",
        "seq_length": config.train.seq_length,
        "num_rows": rows,
        "seed": config.run.seed,
        "tokenizer": tokenizer(places),
    }
    return {f"{prefix}dataset": dataset, f"{prefix}dataloader": loader(f"{OURS}.stack", shuffle=False)}


MAKERS = {"packed": packed_data, "chat": chat_data, "documents": document_data}


def loader(collate: str, *, shuffle: bool) -> dict[str, Any]:
    """A loader whose position is kept in checkpoints."""
    return {
        "_target_": "torchdata.stateful_dataloader.StatefulDataLoader",
        "collate_fn": collate,
        "shuffle": shuffle,
    }
