"""Convert a Hugging Face folder to a Megatron checkpoint. `nemotron export --for megatron` runs this file with the
Python of Megatron's environment:

    python -m nemotron_engines.megatron_bridge.export_checkpoint /tmp/folder /tmp/folder/megatron

The weights pass through the stand-ins for Transformer Engine's layers, which name them as those layers do. The
checkpoint's run_config.yaml describes the model with Transformer Engine's own.
"""

import sys
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

from nemotron_engines.megatron_bridge.convert import bridge_of
from nemotron_engines.megatron_bridge.loop import megatron_process
from nemotron_engines.megatron_bridge.translate import readable
from nemotron_shared.system.program import exit_code_of


def convert(folder: Path, into: Path) -> None:
    """Write the checkpoint, without optimizer state, as that of step 0."""
    from nemotron_engines.stand_ins.transformer_engine import install_stubs

    install_stubs()
    from nemotron_engines.stand_ins.megatron_settings import use_cpu_model

    with TemporaryDirectory() as scratch, megatron_process(on_cpu=True):
        bridge = bridge_of(readable(folder, Path(scratch) / "model"))
        provider = bridge.to_megatron_provider()
        provider.gradient_accumulation_fusion = False  # Bridge sets it by what this machine has
        described = {name: value for name, value in vars(provider).items() if not name.startswith("_")}
        use_cpu_model(provider)
        provider.params_dtype = described["params_dtype"]
        provider.finalize()
        model = provider.provide_distributed_model(wrap_with_ddp=False, use_cpu_initialization=True)
        vars(provider).update(described | {"hf_model_id": None})
        with chdir(into.parent):  # the path is written into the checkpoint as it is given
            bridge.save_megatron_model(model, into.name)


if __name__ == "__main__":
    sys.exit(exit_code_of(lambda: convert(Path(sys.argv[1]), Path(sys.argv[2]))))
