"""NeMo-RL's checkpoints: the newest one, one to continue from, and the Hugging Face folder made of it.

    checkpoints/step_40/{training_info.json, config.yaml, policy/weights/..., policy/optimizer/..., train_dataloader.pt}

NeMo-RL continues from the `step_N` with the highest N in its checkpoint folder, and knows no other way.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from nemotron_data.tokenizers.folder import FILES as TOKENIZER_FILES
from nemotron_engines.nemo_rl.driver import run_logged
from nemotron_engines.nemo_rl.installation import Installation
from nemotron_shared.atomic import link_or_copy
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.needs import Problem

STEP = re.compile(r"step_(\d+)")
FROM_MODEL = ("config.json", "generation_config.json", *TOKENIZER_FILES)


def steps(folder: Path) -> dict[int, Path]:
    """Finished checkpoints by step; one that a kill cut short has another name (`tmp_step_N`)."""
    found = {path: STEP.fullmatch(path.name) for path in folder.glob("step_*")}
    return {int(match[1]): path for path, match in found.items() if match}


def newest(folder: Path) -> tuple[int, Path] | None:
    """The last checkpoint and its step."""
    found = steps(folder)
    return max(found.items()) if found else None


def not_finished(load_path: str) -> Iterator[Problem]:
    """A checkpoint to continue from that is none, or is not whole."""
    source = Path(load_path).expanduser().resolve()
    whole = (source / "training_info.json").is_file() and (source / "policy" / "weights").is_dir()
    if not (STEP.fullmatch(source.name) and whole):
        what = f"{source} is no finished NeMo-RL checkpoint" if source.exists() else f"there is no folder {source}"
        remedy = "give a folder named step_N with training_info.json and policy/weights in it"
        yield Problem(what, remedy, "engine.load_path")


def adopt(load_path: str | None, folder: Path) -> int | None:
    """Put an earlier run's checkpoint where NeMo-RL looks for its own; returns the step, None if nothing was done.

    A run that has checkpoints of its own continues from those. The files are linked where the file system allows it.

    `not_finished` has been asked before.
    """
    if load_path is None or steps(folder):
        return None
    source = Path(load_path).expanduser().resolve()
    waiting = folder / f"tmp_{source.name}"
    shutil.rmtree(waiting, ignore_errors=True)
    shutil.copytree(source, waiting, copy_function=link_or_copy)
    waiting.rename(folder / source.name)
    return max(steps(folder))


def to_hugging_face(installation: Installation, step: Path, model: Path, output: Path, log: Path) -> None:
    """Write the model of a checkpoint as a Hugging Face folder with safetensors, tokenizer and chat template.

    Raises:
        UserError: the converter failed, or wrote no weights.
    """
    weights = step / "policy" / "weights"
    whole = weights / "model" / "consolidated"
    if whole.is_dir():
        shutil.copytree(whole, output, dirs_exist_ok=True)
    else:
        raw = output.with_name(f"{output.name}-converted")  # the converters refuse a folder that exists
        shutil.rmtree(raw, ignore_errors=True)
        programs = installation.checkout / "examples" / "converters"
        common = ["--config", str(step / "config.yaml"), "--hf-ckpt-path", str(raw)]
        if megatron := sorted(weights.glob("iter_*")):
            common += ["--hf-model-name", str(model), "--megatron-ckpt-path", str(megatron[-1])]
            command = installation.command(programs / "convert_megatron_to_hf.py", *common, extra="mcore")
        else:  # torch's distributed checkpoints
            command = installation.command(programs / "convert_dcp_to_hf.py", *common, "--dcp-ckpt-path", str(weights))
        run_logged(installation, command, log, "NeMo-RL's converter failed")
        shutil.copytree(raw, output, dirs_exist_ok=True)
        shutil.rmtree(raw)
    # torch's converter writes `pytorch_model.bin`; our artifacts hold safetensors only
    pickled = output / "pytorch_model.bin"
    if pickled.is_file():
        import torch
        from safetensors.torch import save_file

        tensors = torch.load(pickled, map_location="cpu", weights_only=True, mmap=True)
        # safetensors refuses shared memory
        own = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
        save_file(own, output / "model.safetensors", metadata={"format": "pt"})
        pickled.unlink()
    for name in FROM_MODEL:
        if (model / name).is_file() and not (output / name).exists():
            shutil.copyfile(model / name, output / name)
    if not any(output.glob("*.safetensors")):
        raise UserError(f"{step}: no weights came out of the conversion", f"the whole log: {log}")
