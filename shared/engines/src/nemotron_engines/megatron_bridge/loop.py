"""Train with Bridge's own loop: start or continue, train to the end or stop, export. The whole engine of a stage:

    def train(task: Task[SupervisedConfig[MegatronBridgeEngine]]) -> Outcome:
        return train_with_megatron(task)

Bridge's checkpoints lie in `run.checkpoints/megatron`; the same command continues from the newest whole one.
"""

from pathlib import Path
from typing import Any

from nemotron_engines.megatron_bridge.convert import (
    export_model,
    has_weights,
    keep_checkpoint,
    parameters_of,
    starting_folder,
)
from nemotron_engines.megatron_bridge.environment import megatron_output, megatron_process, prepare
from nemotron_engines.megatron_bridge.settings import MegatronBridgeEngine
from nemotron_engines.megatron_bridge.translate import build_config
from nemotron_engines.modeling.threads import set_threads
from nemotron_shared.config.training import SupervisedConfig
from nemotron_shared.runtime import distributed
from nemotron_shared.runtime.metrics import RESULT_METRICS, last_values
from nemotron_shared.runtime.stop import Stopped
from nemotron_shared.runtime.task import Outcome, Task


def train_with_megatron(task: Task[SupervisedConfig[MegatronBridgeEngine]]) -> Outcome:
    """Train on the task's data, from `run.model` or from random weights.

    Raises:
        Stopped: a signal asked to stop; a checkpoint has been written.
        UserError: a package is missing, the configuration is refused, the model to start from lacks a weight.
    """
    set_threads(task.config.run.threads)
    with megatron_output(task):
        on_cpu = prepare(task)
        container = build_config(task, gpu=not on_cpu)
        steps = container.train.train_iters
        output = run_training(container, task, on_cpu)
    figures = last_values(task.run.metrics, RESULT_METRICS)
    return Outcome(output, {"step": steps, "parameters": parameters_of(output)}, figures)


def run_training(container: Any, task: Task[SupervisedConfig[MegatronBridgeEngine]], on_cpu: bool) -> Path:
    """Train what a ConfigContainer says, and give the run's output: a Hugging Face folder."""
    source = starting_folder(task)
    set_start(container, source, task)
    if on_cpu:
        from nemotron_engines.stand_ins.megatron_settings import use_cpu_settings

        use_cpu_settings(container)
    last = container.train.train_iters
    callback = _callback(container, task, source)
    with megatron_process(on_cpu), task.run.watched():
        _pretrain(container, callback)
    if callback.stopped:
        message = f"[{task.run.name}] stopped after step {callback.last_step} of {last}"
        raise Stopped(message, "run the same command again to continue")
    if task.config.engine.keep_checkpoint:
        saved = Path(container.checkpoint.save)
        distributed.on_rank_zero(lambda: keep_checkpoint(saved, task.run.output))
    return task.run.output


def set_start(container: Any, source: Path, task: Task[SupervisedConfig[MegatronBridgeEngine]]) -> None:
    """Without `run.model`, the random weights that were drawn here, until the run has a checkpoint of its own; and the
    vocabulary is the model's."""
    if task.inputs.get("model") is None and has_weights(source):
        container.checkpoint.pretrained_checkpoint = str(source)
    container.tokenizer.use_tokenizer_vocab_size = False
    container.train.exit_signal_handler = False  # the run's own handler asks the callback to stop


def _callback(container: Any, task: Task[SupervisedConfig[MegatronBridgeEngine]], source: Path) -> Any:
    from nemotron_engines.megatron_bridge.callback import RunCallback

    tokenizer = task.input("data").path / "tokenizer"
    tokens_per_step = container.train.global_batch_size * container.dataset.seq_length
    return RunCallback(task, tokens_per_step, lambda model: export_model(model, source, tokenizer, task.run))


def _pretrain(container: Any, callback: Any) -> None:
    from megatron.bridge.training.gpt_step import forward_step  # ty: ignore[import-not-found]
    from megatron.bridge.training.pretrain import pretrain  # ty: ignore[import-not-found]

    pretrain(container, forward_step, callbacks=[callback])
