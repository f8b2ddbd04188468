"""Train with Bridge's own loop: start or continue, train to the end or stop, export. The whole engine of a stage:

    def train(task: Task[SupervisedConfig[MegatronBridgeEngine]]) -> Outcome:
        return train_with_megatron(task)

Bridge's checkpoints lie in `run.checkpoints/megatron`; the same command continues from the newest whole one.
"""

from pathlib import Path
from typing import Any

from transformers import AutoConfig

from nemotron_engines.megatron_bridge.convert import (
    export_model,
    has_weights,
    keep_checkpoint,
    starting_folder,
)
from nemotron_engines.megatron_bridge.environment import megatron_output, megatron_process, prepare
from nemotron_engines.megatron_bridge.settings import MegatronBridgeEngine
from nemotron_engines.megatron_bridge.translate import build_config
from nemotron_engines.modeling.build import count_parameters
from nemotron_engines.modeling.threads import set_threads
from nemotron_shared.config.training import SupervisedConfig
from nemotron_shared.runtime import distributed
from nemotron_shared.runtime.metrics import RESULT_METRICS, last_values
from nemotron_shared.runtime.spec import Outcome, Task
from nemotron_shared.runtime.stop import Stopped


def train_with_megatron(task: Task[SupervisedConfig[MegatronBridgeEngine]]) -> Outcome:
    """Train on the task's data, from `run.model` or from random weights.

    Raises:
        Stopped: a signal asked to stop; a checkpoint has been written.
        UserError: a package is missing, the configuration is refused, the model to start from lacks a weight.
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
    """Without `run.model`, the random weights that were drawn here, until the run has a checkpoint of its own; and the
    vocabulary is the model's."""
    if task.inputs.get("model") is None and has_weights(source):
        container.checkpoint.pretrained_checkpoint = str(source)
    container.tokenizer.use_tokenizer_vocab_size = False
    container.train.exit_signal_handler = False  # the run's own handler asks the callback to stop
