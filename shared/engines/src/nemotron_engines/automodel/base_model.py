"""The folder that Automodel starts from: the user's model, or one with random weights made by transformers.

Automodel never makes weights here. Its NemotronH class leaves most of them uninitialised when it is built from a
config (seen in 0.7.0), and weights from one source make its runs comparable with those of the other engines.
"""

import json
from pathlib import Path
from typing import Any

from nemotron_engines.automodel.settings import AutomodelEngine
from nemotron_shared.atomic import read_json, write_text
from nemotron_shared.config.training import SupervisedConfig
from nemotron_shared.errors import UserError

# What our models carry is 0: no lower limit. Automodel takes its logarithm for weights that are then overwritten.
PLACEHOLDER_TIME_STEP = 0.001


def stage_base_model(
    config: SupervisedConfig[AutomodelEngine], source: Path | None, tokenizer: Path, into: Path
) -> Path:
    """Make `into` a folder that Automodel can read; returns it.

    Args:
        source: a Hugging Face folder of the NemotronH architecture, or None for random weights.

    Raises:
        UserError: the folder holds another architecture, or no safetensors.
    """
    into.mkdir(parents=True, exist_ok=True)
    if source is None:
        from nemotron_engines.modeling.build import save_random_model

        source = into.with_name("random")
        if not (source / "config.json").exists():  # else a run that goes on: its checkpoint was made over these weights
            save_random_model(config.model, tokenizer, config.run.seed, source)
    fields = read_json(source / "config.json")
    if (kind := fields.get("model_type")) != "nemotron_h":
        raise UserError(f"{source}: engine 'automodel' trains NemotronH models, not '{kind}'", "use another engine")
    if not list(source.glob("*.safetensors")):
        raise UserError(f"{source}: holds no safetensors", "save the model in that format")
    for file in source.iterdir():
        link = into / file.name
        if file.is_file() and file.name != "config.json" and not link.exists():
            link.symlink_to(file.resolve())
    write_text(into / "config.json", json.dumps(readable_config(fields), indent=2))
    return into


def readable_config(fields: dict[str, Any]) -> dict[str, Any]:
    """config.json with a `time_step_min` that has a logarithm."""
    return fields | {"time_step_min": fields.get("time_step_min") or PLACEHOLDER_TIME_STEP}
