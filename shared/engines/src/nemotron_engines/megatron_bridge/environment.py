"""The process in which Megatron's loop runs: what stands in for a GPU, the process group, and where its output goes.

with megatron_output(task):                 # the libraries' own lines go to a file
    on_cpu = prepare(task)                  # stubs where there is no GPU; before anything imports megatron
    container = build_config(task)
    with megatron_process(on_cpu):
        pretrain(container, forward_step)
"""

import logging
import os
import warnings
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import torch

from nemotron_engines.megatron_bridge.settings import MegatronBridgeEngine
from nemotron_shared.config.training import SupervisedConfig
from nemotron_shared.errors import UserError
from nemotron_shared.runtime import distributed
from nemotron_shared.runtime.library_output import library_output
from nemotron_shared.runtime.spec import Task

LOG_NAME = "megatron.log"
NOT_CONVERTED = ("Can't find", "No mapping found")
# They tell at import time, past the root logger, what cannot be found on a CPU.
TALKATIVE = ("megatron.bridge.utils.import_utils", "torch.utils.cpp_extension")


def prepare(task: Task[SupervisedConfig[MegatronBridgeEngine]]) -> bool:
    """Make Megatron importable, and say whether it will run on the CPU."""
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
    """torchrun's processes have a group already; a single process gets one of its own."""
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
    """Send prints and log lines of the libraries to `megatron.log` in the run's folder, and drop their warnings."""
    name = LOG_NAME if distributed.rank() == 0 else f"megatron.{distributed.rank()}.log"
    with library_output(task.run.directory / name), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _every_weight_loaded() -> Generator[None]:
    """Bridge only warns about a weight that a Hugging Face folder lacks, and goes on with a random one."""

    def refuse(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if any(part in message for part in NOT_CONVERTED):
            without_mtp = "set engine.overrides.model.mtp_num_layers=0: it has no layers for tokens beyond the next"
            remedy = without_mtp if "mtp." in message else "give another run.model"
            raise UserError(f"the model to start from is not complete: {message}", remedy)
        return True

    logger = logging.getLogger("megatron.bridge.models.conversion.model_bridge")
    logger.addFilter(refuse)
    try:
        yield
    finally:
        logger.removeFilter(refuse)
