"""Fine-tune with Megatron-Bridge: the recipes of Nemotron 3 on GPUs, all weights or adapters, on packed rows.

torchrun --nproc-per-node=8 stages/sft/train.py -c nano3 run.model=/models/nemotron-nano

On a CPU the configuration is built and checked by Bridge, and then the run is refused: what keeps the conversations of
a packed row apart is an attention kernel of Transformer Engine, for which there is no other.
"""

from nemotron_engines.megatron_bridge.environment import megatron_output, prepare
from nemotron_engines.megatron_bridge.loop import train_with_megatron
from nemotron_engines.megatron_bridge.settings import MegatronBridgeEngine
from nemotron_engines.megatron_bridge.translate import build_config
from nemotron_engines.modeling.start import checked_base
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.task import Outcome, Task
from stages.sft.schema import SFTConfig


def train(task: Task[SFTConfig[MegatronBridgeEngine]]) -> Outcome:
    """Train on the assistant's tokens of the packed rows; adapters are merged into the exported weights.

    Raises:
        UserError: there is no GPU.
    """
    checked_base(task)
    with megatron_output(task):
        if prepare(task):
            build_config(task, gpu=False, world_size=task.config.engine.world_size)
            raise _needs_gpu(task.config.engine)
    return train_with_megatron(task)


def _needs_gpu(engine: MegatronBridgeEngine) -> UserError:
    processes = engine.world_size or 1
    what = "engine megatron_bridge cannot fine-tune without a GPU: packed rows need attention of Transformer Engine"
    sound = f"Megatron-Bridge accepts this configuration for {processes} process{'es' if processes > 1 else ''}"
    return UserError(f"{what}; {sound}", "run it on GPUs, or use engine=transformers")
