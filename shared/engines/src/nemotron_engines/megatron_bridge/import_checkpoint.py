"""A checkpoint of Megatron as a Hugging Face folder. `nemotron model import megatron:PATH` starts this file with the
Python of Megatron's environment:

    python -m nemotron_engines.megatron_bridge.import_checkpoint /checkpoints/iter_0002000 /tmp/folder

The checkpoint must have been written by Megatron-Bridge, whose `run_config.yaml` describes the model.
"""

import sys
from pathlib import Path

import torch

from nemotron_data.tokenizers.folder import copy_tokenizer
from nemotron_shared.errors import UserError, exit_code_of


def convert(checkpoint: Path, into: Path) -> None:
    """Write the folder, with the tokenizer that was saved beside the weights.

    Raises:
        UserError: Bridge cannot tell what model it is.
    """
    if not torch.cuda.is_available():
        from nemotron_engines.stand_ins.transformer_engine import install_stubs

        install_stubs()
    from megatron.bridge import AutoBridge  # ty: ignore[import-not-found]

    newest = checkpoint
    if not (checkpoint / "run_config.yaml").is_file():
        saved = sorted(checkpoint.glob("iter_*"), key=lambda path: path.name)
        newest = saved[-1] if saved else checkpoint
    if not (newest / "run_config.yaml").is_file():
        raise UserError(
            f"{checkpoint}: no run_config.yaml, so nothing tells which model it is",
            "give a checkpoint that Megatron-Bridge wrote",
        )
    tokenizer = next((path.parent for path in sorted(newest.rglob("tokenizer.json"))), None)
    bridge = AutoBridge.from_auto_config(str(newest))
    bridge.export_ckpt(str(newest), str(into), show_progress=False, strict=True)
    if tokenizer is not None:
        copy_tokenizer(tokenizer, into)


if __name__ == "__main__":
    sys.exit(exit_code_of(lambda: convert(Path(sys.argv[1]), Path(sys.argv[2]))))
