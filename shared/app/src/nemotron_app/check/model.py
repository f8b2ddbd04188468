"""Facts from a model's config.json: type, class, and whether its layers differ from each other.

Never runs code from the model folder.
"""

import re
from pathlib import Path
from typing import Any

from nemotron_shared.atomic import read_json
from nemotron_shared.errors import UserError
from nemotron_shared.hub_errors import HubPlace, hub_errors

HUB_NAME = re.compile(r"(?:hf://)?([\w.-]+/[\w.-]+)")

HETEROGENEOUS = "DeciLMForCausalLM"
"""A class whose layers are described one by one in `block_configs`: some lack attention, and MLP widths vary."""


def probe(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the facts as JSON and as text lines. `ok` is false if the model cannot be used.

    Raises:
        UserError: config.json is not a JSON object.
    """
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise UserError(f"{folder / 'config.json'}: not a JSON object", "download the model again")
    names = config.get("architectures")
    architecture = str(names[0]) if isinstance(names, list) and names else None
    blocks = config.get("block_configs")
    has_blocks = isinstance(blocks, list) and bool(blocks)
    layers = config.get("num_hidden_layers")
    ok = has_blocks or architecture != HETEROGENEOUS
    if has_blocks and isinstance(layers, int) and len(blocks) != layers:
        ok = False
        described = f"yes, but of {len(blocks)} layers, and num_hidden_layers is {layers}: config.json is damaged"
    elif has_blocks:
        different = len({repr(block) for block in blocks})
        described = f"yes: {len(blocks)} layers of {different} different kinds, which need a parallel plan of their own"
    elif ok:
        described = "no: standard tensor parallelism fits"
    else:
        described = f"no, although {architecture} cannot be built without it"
    facts = {"model_type": config.get("model_type"), "architecture": architecture, "block_configs": has_blocks}
    lines = [
        f"model type: {facts['model_type'] or 'not said'}",
        f"architecture: {architecture or 'not said'}{' (heterogeneous)' if has_blocks else ''}",
        f"has block_configs: {described}",
    ]
    if not ok:
        lines.append("  download config.json again, from the model's own page")
    return {"ok": ok, **facts}, lines


def from_hub(name: str) -> Path:
    """Download only config.json of a model on the Hugging Face hub; returns its folder.

    Raises:
        UserError: unknown model, no access to it, or no connection to the hub.
    """
    address = f"hf://{name}"
    with hub_errors(address, HubPlace(name, None, "model")):
        from huggingface_hub import HfApi, constants, hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, HFValidationError, LocalEntryNotFoundError

        try:
            if not constants.HF_HUB_OFFLINE:
                HfApi().model_info(name)  # fails fast, whereas a download is retried several times
            return Path(hf_hub_download(name, "config.json")).parent
        except LocalEntryNotFoundError:
            raise
        except (EntryNotFoundError, HFValidationError) as error:
            what = f"{address}: holds no config.json of a model"
            raise UserError(what, "check the name, or give the model's folder") from error
