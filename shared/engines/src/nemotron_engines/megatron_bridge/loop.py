"""Train with Bridge's own loop: start or continue, train to the end or stop, export. The whole engine of a stage:

    def train(task: Task[SupervisedConfig[MegatronBridgeEngine]]) -> Outcome:
        return train_with_megatron(task)

Bridge's checkpoints are in `run.checkpoints/megatron`; the same command continues from the newest complete one.
"""

import logging
import os
import warnings
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from nemotron_engines.megatron_bridge.convert import (
    export_model,
    has_weights,
    keep_checkpoint,
    starting_folder,
)
from nemotron_engines.megatron_bridge.settings import MegatronBridgeEngine
from nemotron_engines.megatron_bridge.translate import build_config
from nemotron_engines.modeling.build import count_parameters, set_threads
from nemotron_shared.config.training import SupervisedConfig
from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.machine.library_output import library_output
from nemotron_shared.system import distributed
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.stop import Stopped
from nemotron_shared.tracking.metrics import RESULT_METRICS, last_values


def train_with_megatron(task: Task[SupervisedConfig[MegatronBridgeEngine]]) -> Outcome:
    """Train on the task's data, from `run.model` or from random weights.

    Raises:
        Stopped: a signal asked to stop; a checkpoint has been written.
        UserError: a package is missing, the configuration is refused, or the starting model lacks a weight.
    """
    run = task.run
    set_threads(task.config.run.threads)
    with megatron_output(task):
        on_cpu = prepare(task)
        container = build_config(task, gpu=not on_cpu)
        last = container.train.train_iters
        source = starting_folder(task)
        set_start(container, source, task)
        if on_cpu:
            from nemotron_engines.stand_ins.megatron_settings import use_cpu_settings

            use_cpu_settings(container)
        from nemotron_engines.megatron_bridge.callback import RunCallback

        tokenizer = task.input("data").path / "tokenizer"
        tokens_per_step = container.train.global_batch_size * container.dataset.seq_length
        callback = RunCallback(task, tokens_per_step, lambda model: export_model(model, source, tokenizer, run))
        with megatron_process(on_cpu), run.watched():
            from megatron.bridge.training.gpt_step import forward_step  # ty: ignore[import-not-found]
            from megatron.bridge.training.pretrain import pretrain  # ty: ignore[import-not-found]

            pretrain(container, forward_step, callbacks=[callback])
        if callback.stopped:
            message = f"[{run.name}] stopped after step {callback.last_step} of {last}"
            raise Stopped(message, "run the same command again to continue")
        run.require_all_steps(callback.last_step, last)
        if task.config.engine.keep_checkpoint:
            distributed.on_rank_zero(lambda: keep_checkpoint(Path(container.checkpoint.save), run.output))
    parameters = count_parameters(
        AutoConfig.from_pretrained(run.output, local_files_only=True, trust_remote_code=False)
    )
    return Outcome(
        run.output, {"step": callback.last_step, "parameters": parameters}, last_values(run.metrics, RESULT_METRICS)
    )


def set_start(container: Any, source: Path, task: Task[SupervisedConfig[MegatronBridgeEngine]]) -> None:
    """Without `run.model`, start from our random weights, unless the run already has a checkpoint; and use the model's
    vocabulary size."""
    if task.inputs.get("model") is None and has_weights(source):
        container.checkpoint.pretrained_checkpoint = str(source)
    container.tokenizer.use_tokenizer_vocab_size = False
    container.train.exit_signal_handler = False  # the run's own handler stops the loop through the callback


LOG_NAME = "megatron.log"
NOT_CONVERTED = ("Can't find", "No mapping found")
# At import, these report what is missing on a CPU, bypassing the root logger.
TALKATIVE = ("megatron.bridge.utils.import_utils", "torch.utils.cpp_extension")


def prepare(task: Task[SupervisedConfig[MegatronBridgeEngine]]) -> bool:
    """Make Megatron importable; returns whether it will run on the CPU."""
    if task.config.engine.device != "cpu" and torch.cuda.is_available():
        return False
    from nemotron_engines.stand_ins.transformer_engine import install_stubs

    for name in TALKATIVE:
        logging.getLogger(name).addFilter(lambda record: record.levelno > logging.WARNING)
    task.run.say(
        "megatron: no GPU, so torch.cuda is faked, Transformer Engine and nvidia-resiliency-ext are stubs, and Mamba "
        "is the pure-torch reference"
    )
    install_stubs()
    return True


@contextmanager
def megatron_process(on_cpu: bool) -> Generator[None]:
    """The process group, and the CPU's stand-ins."""
    with ExitStack() as stack:
        stack.enter_context(_process_group(on_cpu))
        stack.enter_context(_every_weight_loaded())
        if on_cpu:
            from nemotron_engines.stand_ins.megatron_cuda import faked_cuda

            stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(faked_cuda())
        yield


@contextmanager
def _process_group(on_cpu: bool) -> Generator[None]:
    """Create a process group for a single process; torchrun's processes already have one."""
    if torch.distributed.is_initialized():
        yield
        return
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        os.environ.setdefault(name, value)
    backend = "gloo" if on_cpu else "cpu:gloo,cuda:nccl"
    torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


@contextmanager
def megatron_output(task: Task[SupervisedConfig[MegatronBridgeEngine]]) -> Generator[None]:
    """Redirect the libraries' prints and logs to `megatron.log` in the run folder, and drop their warnings."""
    name = LOG_NAME if distributed.rank() == 0 else f"megatron.{distributed.rank()}.log"
    with library_output(task.run.directory / name), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _every_weight_loaded() -> Generator[None]:
    """Turn Bridge's warning about a missing weight into an error; it would continue with a random one."""

    def refuse(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if any(part in message for part in NOT_CONVERTED):
            without_mtp = "set engine.overrides.model.mtp_num_layers=0: it has no multi-token prediction layers"
            remedy = without_mtp if "mtp." in message else "use another run.model"
            raise UserError(f"the starting model is incomplete: {message}", remedy)
        return True

    logger = logging.getLogger("megatron.bridge.models.conversion.model_bridge")
    logger.addFilter(refuse)
    try:
        yield
    finally:
        logger.removeFilter(refuse)
