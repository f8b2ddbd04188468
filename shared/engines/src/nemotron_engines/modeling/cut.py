"""A small model of the same architecture, with random weights: what a rehearsal trains in the place of the real one.

    cut_model(Path("/models/nano"), Path("/tmp/small"), seed=0)      "4 of 52 layers, 64 of 2688 wide"

A model of up to `SMALL` parameters is taken as it is. Of a larger one two layers are left, or one of each kind where
the config lists kinds; hidden size and heads are divided by the same power of two, so that heads are as wide as
before, and feed-forward layers are 64 wide. The vocabulary is whole, because real rows are trained on.
"""

import json
import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from nemotron_engines.modeling.build import ONLY_MADE, load_model, random_of, read_config, require_tensors, save_model
from nemotron_engines.modeling.saved_types import type_to_save
from nemotron_engines.modeling.sizes import NOT_THE_FILE, count_parameters
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.models.ends import FILE as GENERATION

__all__ = ["ONLY_MADE", "cut_model", "load_model", "require_tensors"]

SMALL = 5_000_000
"""Parameters of a model that is rehearsed as it is."""
LARGEST = 150_000_000
"""Parameters of a model that a rehearsal makes: with its gradients, moments and files 5 GB."""
NARROWEST, FEED_FORWARD = 64, 64
INNER = re.compile(r".*intermediate_size|ffn_dim|ffn_hidden_size|n_inner")
HEADS = ("num_attention_heads", "num_key_value_heads", "num_kv_heads")
INDICES = re.compile(r".*_(idxs|layers|layer_ids|indices)")
"""Keys of lists that hold the numbers of some layers."""


def cut_model(source: Path, into: Path, seed: int) -> str:
    """Write the folder, with the tokenizer of the source; what was left of its sizes, for people.

    Raises:
        UserError: the source holds no config or tokenizer of a model; LookupError: none is small enough.
    """
    config = read_config(source)
    for fields, told in _smaller(config):
        try:
            cut = type(config).from_dict(fields)
            small = count_parameters(cut) <= LARGEST
        except NOT_THE_FILE:
            raise
        except Exception:  # noqa: BLE001, S112 - sizes depend on each other in other ways: the next candidate
            continue
        if small:
            _write(cut, source, into, seed)
            return told
    raise LookupError(f"of {source} no model of up to {LARGEST:,} parameters can be made")


def _write(config: Any, source: Path, into: Path, seed: int) -> None:
    model: Any = random_of(config, seed, ONLY_MADE)
    model.to(type_to_save(None, str(source)) or torch.float32)
    save_model(model, source, into)
    if (source / GENERATION).is_file():  # what the library would refuse to save again, it shall refuse now
        shutil.copyfile(source / GENERATION, into / GENERATION)


def _smaller(config: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Candidates, each with what is left; the first that is a model and small enough is taken."""
    whole = config.to_dict()
    if count_parameters(config) <= SMALL:
        yield whole, "its own size"
        return
    name = next((part for part in ("text_config",) if isinstance(whole.get(part), dict)), None)
    text = config.get_text_config()
    for narrow in (True, False):
        fields, told = _cut(text, narrow=narrow)
        yield (fields if name is None or text is config else whole | {name: fields}), told


def _cut(config: Any, *, narrow: bool) -> tuple[dict[str, Any], str]:
    fields, layers = config.to_dict(), config.num_hidden_layers
    kept = _kept_layers(fields, layers)
    for key, value in list(fields.items()):
        if isinstance(value, list) and len(value) == layers and layers > 1:
            fields[key] = [value[number] for number in kept]
        elif isinstance(value, list) and INDICES.fullmatch(key):
            fields[key] = [place for place, number in enumerate(kept) if number in value]
    if isinstance(dense := fields.get("first_k_dense_replace"), int):
        fields["first_k_dense_replace"] = sum(number < dense for number in kept)
    own = config.attribute_map
    fields[own.get("num_hidden_layers", "num_hidden_layers")] = len(kept)
    told = f"{len(kept)} of its {layers} layers"
    if not narrow:
        return fields, told
    hidden = own.get("hidden_size", "hidden_size")
    by = _divisor(fields[hidden], fields.get(own.get(HEADS[0], HEADS[0])))
    for key in {own.get(key, key) for key in ("hidden_size", "embedding_size", "word_embed_proj_dim", *HEADS)}:
        if isinstance(value := fields.get(key), int):
            fields[key] = max(1, value // by)
    for key, value in fields.items():
        if INNER.fullmatch(key) and isinstance(value, int):
            fields[key] = min(value, FEED_FORWARD)
    return fields, f"{told}, {fields[hidden]} of {fields[hidden] * by} wide"


def _kept_layers(fields: dict[str, Any], layers: int) -> list[int]:
    """Numbers of layers: one of each kind that the config lists, and two at least."""
    lists = [value for value in fields.values() if isinstance(value, list) and len(value) == layers]
    dense, chosen = fields.get("first_k_dense_replace"), [
        value for key, value in fields.items() if isinstance(value, list) and INDICES.fullmatch(key)
    ]
    found: dict[str, int] = {}
    for number in range(layers):
        kinds = [*(one[number] for one in lists), isinstance(dense, int) and number < dense,
                 *(number in some for some in chosen)]  # fmt: skip
        found.setdefault(json.dumps(kinds, default=str), number)
    kept = sorted(found.values())
    return sorted({*kept, *range(min(2, layers))})[:layers] if len(kept) < 2 else kept


def _divisor(hidden: int, heads: int | None) -> int:
    """The largest power of two that leaves a model of `NARROWEST` and a head."""
    power = math.gcd(hidden, heads or hidden, 2**20)
    while hidden // power < NARROWEST and power > 1:
        power //= 2
    return power
