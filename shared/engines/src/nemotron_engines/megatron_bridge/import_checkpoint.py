"""Convert a Megatron checkpoint to a Hugging Face folder. `nemotron model import megatron:PATH` runs this file with the
Python of Megatron's environment:

    python -m nemotron_engines.megatron_bridge.import_checkpoint /checkpoints/iter_0002000 /tmp/folder

The checkpoint does not contain the Hugging Face names of its weights. They come from the model's `config.json`, which
must be in the checkpoint's folder or in one of the two above it, as in models that engine megatron_bridge publishes.
"""

import os
import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoConfig

from nemotron_data.tokenizers.folder import copy_tokenizer
from nemotron_engines.megatron_bridge.loop import megatron_process
from nemotron_shared.errors import UserError, exit_code_of


def convert(checkpoint: Path, into: Path) -> None:
    """Write the folder: weights under the reference's names, its config, and its tokenizer.

    Raises:
        UserError: no reference config.json found.
    """
    newest = max(checkpoint.glob("iter_*"), key=lambda path: path.name, default=checkpoint)
    reference = next((at for at in (newest, *newest.parents[:2]) if (at / "config.json").is_file()), None)
    if reference is None:
        raise UserError(
            f"{checkpoint}: no config.json there or above, so the names of its weights are unknown",
            "copy the model's config.json and tokenizer.json into that folder",
        )
    on_cpu = not torch.cuda.is_available()
    if on_cpu:
        from nemotron_engines.stand_ins.transformer_engine import install_stubs

        install_stubs()
    from megatron.bridge import AutoBridge  # ty: ignore[import-not-found]

    # this variable would disable weights-only reading of the checkpoint's pickles
    os.environ.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
    config = AutoConfig.from_pretrained(reference, local_files_only=True, trust_remote_code=False)
    bridge = AutoBridge.from_hf_config(config)
    with megatron_process(on_cpu):
        model = bridge.load_megatron_model(str(newest), wrap_with_ddp=False)
        bridge.save_hf_weights(model, into, show_progress=False, strict=True)
    for name in ("config.json", "generation_config.json"):
        if (reference / name).is_file():
            shutil.copyfile(reference / name, into / name)
    copy_tokenizer(reference, into)


if __name__ == "__main__":
    sys.exit(exit_code_of(lambda: convert(Path(sys.argv[1]), Path(sys.argv[2]))))
