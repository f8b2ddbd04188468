"""What a model's config.json says of its kind: type, class, and whether its layers differ from each other.

Nothing of the model is run, whatever code its folder holds.
"""

import re
from pathlib import Path
from typing import Any

from nemotron_shared.atomic import read_json
from nemotron_shared.errors import UserError, how_to_add

HUB_NAME = re.compile(r"(?:hf://)?([\w.-]+/[\w.-]+)")

HETEROGENEOUS = "DeciLMForCausalLM"
"""Its layers are described one by one in `block_configs`: attention here, none there, MLPs of many widths."""


def probe(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The facts for a program, and the same as lines for people; `ok` is false where the model cannot be used.

    Raises:
        UserError: config.json is no object.
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
    """A folder with config.json of a model of the Hugging Face hub; nothing else is downloaded.

    Raises:
        UserError: there is no such model, it is not open to everybody, or there is no way to the hub.
    """
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError
    except ImportError as error:
        raise UserError(f"{name}: the hub is read with huggingface_hub", how_to_add("huggingface-hub")) from error
    try:
        return Path(hf_hub_download(name, "config.json")).parent
    except (HfHubHTTPError, EntryNotFoundError, HFValidationError, OSError) as error:
        what = f"{name}: config.json cannot be fetched from the hub ({type(error).__name__})"
        remedy = "check the name and the network, set HF_TOKEN where a licence is asked for; or give the model's folder"
        raise UserError(what, remedy) from error
