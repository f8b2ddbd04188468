"""Tokens that end an answer, from the model's generation_config.json, as transformers, vLLM and we read it."""

import json
from pathlib import Path
from typing import Any

from nemotron_shared.atomic import read_json, write_text
from nemotron_shared.runtime.models.code import config_of

FILE = "generation_config.json"
IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def generation_of(folder: Path) -> dict[str, Any]:
    """The folder's generation_config.json, or the equivalent values in its config.json."""
    if (folder / FILE).is_file():
        return read_json(folder / FILE)
    config = config_of(folder)
    return {name: config[name] for name in IDS if config.get(name) is not None}


def end_answers_at(folder: Path, token: int) -> None:
    """Make `token` end answers of the model in a folder, in addition to those that already do."""
    told = generation_of(folder)
    known = told.get("eos_token_id")
    known = config_of(folder).get("eos_token_id") if known is None else known
    ids = known if isinstance(known, list) else [] if known is None else [known]
    if token not in ids:
        told["eos_token_id"] = [*ids, token]
        write_text(folder / FILE, json.dumps(told, indent=2) + "\n")
