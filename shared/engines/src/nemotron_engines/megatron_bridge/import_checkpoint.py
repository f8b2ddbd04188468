"""Convert a Megatron checkpoint to a Hugging Face folder. `nemotron model import megatron:PATH` runs this file with the
Python of Megatron's environment:

    python -m nemotron_engines.megatron_bridge.import_checkpoint /checkpoints/iter_0002000 /tmp/folder

The checkpoint does not contain the Hugging Face names of its weights. They come from the model's `config.json`, which
must be in the checkpoint's folder or in one of the two above it, as in models that engine megatron_bridge publishes.
"""

import os
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from transformers import AutoConfig

from nemotron_data.tokenizers.folder import copy_tokenizer
from nemotron_engines.megatron_bridge.loop import megatron_process
from nemotron_engines.megatron_bridge.translate import readable
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.program import exit_code_of


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
    with TemporaryDirectory() as scratch:
        known = readable(reference, Path(scratch) / "model")
        config = AutoConfig.from_pretrained(known, local_files_only=True, trust_remote_code=False)
    bridge = AutoBridge.from_hf_config(config)
    with _layers_of_torch() if on_cpu else nullcontext(), megatron_process(on_cpu):
        model = bridge.load_megatron_model(str(newest), wrap_with_ddp=False)
        bridge.save_hf_weights(model, into, show_progress=False, strict=True)
    for name in ("config.json", "generation_config.json"):
        if (reference / name).is_file():
            shutil.copyfile(reference / name, into / name)
    copy_tokenizer(reference, into)


@contextmanager
def _layers_of_torch() -> Generator[None]:
    """Let Bridge build the model that a checkpoint describes without Transformer Engine, in the type that it has."""
    # imported now, because it cannot be while torch.cuda is faked
    import megatron.bridge.training.mlm_compat.model  # noqa: F401  # ty: ignore[import-not-found]
    from megatron.bridge.training import model_load_save  # ty: ignore[import-not-found]
    from megatron.bridge.utils.instantiate_utils import (  # ty: ignore[import-not-found]
        register_allowed_target_prefix,
    )

    from nemotron_engines.stand_ins.megatron_settings import use_cpu_model

    described = model_load_save.load_model_config

    def on_cpu(path: str) -> tuple[Any, Any]:
        provider, arguments = described(path)
        kept = {name: getattr(provider, name) for name in ("bf16", "fp16", "params_dtype")}
        use_cpu_model(provider)
        vars(provider).update(kept)
        return provider, arguments

    register_allowed_target_prefix("nemotron_engines.stand_ins.")  # named by checkpoints of trainings on a CPU
    with patch.object(model_load_save, "load_model_config", on_cpu):
        yield


if __name__ == "__main__":
    sys.exit(exit_code_of(lambda: convert(Path(sys.argv[1]), Path(sys.argv[2]))))
