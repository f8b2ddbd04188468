"""Convert weights between Hugging Face folders and Megatron, with Bridge's AutoBridge.

    source = starting_folder(task)                       # what training starts from, a Hugging Face folder
    export_model(model, source, task, tokenizer)         # the trained weights, under the same names

An export is written next to the output and renamed once it is complete.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from nemotron_data.tokenizers.folder import copy_tokenizer
from nemotron_engines.megatron_bridge.needs import WEIGHTS
from nemotron_engines.megatron_bridge.settings import MegatronBridgeEngine
from nemotron_engines.megatron_bridge.translate import readable, write_model_config
from nemotron_engines.modeling.build import count_parameters, require_fit, save_random_model
from nemotron_shared.config.training import SupervisedConfig
from nemotron_shared.engine.spec import Task
from nemotron_shared.system import distributed
from nemotron_shared.system.atomic import link_or_copy, read_json, write_text
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.redaction import redact
from nemotron_shared.tracking.run import Run

# Up to this size, a model starts from the random weights that engine `transformers` gives for the same seed. A larger
# one, or one with multi-token prediction, which transformers lacks, gets Megatron's own, each process its part.
LARGEST_DRAWN_HERE = 1e9


def has_weights(folder: Path) -> bool:
    """Whether a Hugging Face folder holds more than a config."""
    return any((folder / name).is_file() for name in WEIGHTS)


def starting_folder(task: Task[SupervisedConfig[MegatronBridgeEngine]]) -> Path:
    """The Hugging Face folder that training starts from: `run.model`, or random weights; for a large model only
    its config."""
    base = task.inputs.get("model")
    if base is not None:
        folder = readable(base.path, task.run.directory / "model")
        distributed.on_rank_zero(lambda: require_fit(replace(base, path=folder)))
        return folder
    section, tokenizer = task.config.model, task.input("data").path / "tokenizer"
    folder = task.run.checkpoints / "start"

    def make() -> Path:
        if folder.is_dir():
            return folder
        partial = folder.with_name("start.partial")
        shutil.rmtree(partial, ignore_errors=True)
        config = AutoConfig.from_pretrained(
            write_model_config(section, tokenizer, partial), local_files_only=True, trust_remote_code=False
        )
        if count_parameters(config) > LARGEST_DRAWN_HERE or config.num_nextn_predict_layers:
            copy_tokenizer(tokenizer, partial)
        else:
            save_random_model(section, tokenizer, task.config.run.seed, partial)
        partial.replace(folder)
        return folder

    return distributed.on_rank_zero(make)


def export_model(model: list[Any], source: Path, tokenizer: Path, run: Run) -> None:
    """Write the trained model into the run's output. Every rank calls this; rank 0 writes.

    Args:
        model: Megatron's model, as its loop hands it over.
        source: Hugging Face folder that provides the config and weight names of the result.

    Raises:
        UserError: the export lacks a weight that `source` has, or has an extra one.
    """
    partial = run.directory / "output.partial"

    def begin() -> None:
        shutil.rmtree(partial, ignore_errors=True)
        fields = read_json(source / "config.json")
        trained = model[0]
        while hasattr(trained, "module"):
            trained = trained.module
        if not getattr(trained.config, "mtp_num_layers", None):
            fields["num_nextn_predict_layers"] = 0  # multi-token prediction was not trained
        fields["dtype"] = str(next(trained.parameters()).dtype).removeprefix("torch.")
        write_text(partial / "config.json", json.dumps(fields, indent=2) + "\n")
        if (source / "generation_config.json").is_file():
            shutil.copyfile(source / "generation_config.json", partial / "generation_config.json")

    def finish() -> None:
        if has_weights(source):
            wanted, found = (set(weight_names(folder)) for folder in (source, partial))
            wrong = sorted(name for name in wanted ^ found if not name.startswith("mtp."))
            if wrong:
                what = f"the export is incomplete: {', '.join(wrong[:5])}"
                raise UserError(what, "this is a bug in the conversion; please report it")
        copy_tokenizer(tokenizer, partial)
        for file in partial.glob("*.safetensors"):
            shutil.copymode(partial / "config.json", file)  # Bridge makes them unreadable for others
        shutil.rmtree(run.output, ignore_errors=True)
        partial.replace(run.output)

    distributed.on_rank_zero(begin)
    bridge_of(source).save_hf_weights(model, partial, show_progress=False, strict=True)
    distributed.on_rank_zero(finish)


def bridge_of(folder: Path) -> Any:
    """AutoBridge of a Hugging Face folder, with or without weights."""
    from megatron.bridge import AutoBridge  # ty: ignore[import-not-found]

    if has_weights(folder):
        return AutoBridge.from_hf_pretrained(str(folder), local_files_only=True)
    return AutoBridge.from_hf_config(AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False))


def weight_names(folder: Path) -> list[str]:
    """Names of the weights in a folder's safetensors files."""
    from safetensors import safe_open

    names: list[str] = []
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            names += weights.keys()
    return names


def keep_checkpoint(saved: Path, output: Path) -> None:
    """Add the newest Megatron checkpoint to the exported model, as `megatron/`; files are linked, not copied."""
    target = output / "megatron"
    newest = max(saved.glob("iter_*"), key=lambda path: path.name)
    shutil.copytree(newest, target / newest.name, copy_function=link_or_copy)
    for file in saved.iterdir():
        if file.is_file():
            link_or_copy(file, target / file.name)
    for file in target.rglob("*.yaml"):  # Bridge saves its whole config here
        text = file.read_text(encoding="utf-8")
        if (shown := redact(text)) != text:
            write_text(file, shown)
