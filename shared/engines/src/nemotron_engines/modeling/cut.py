"""Make a small model of the same architecture, with random weights, for a rehearsal of the training.

    for one in smaller(Path("/models/nano")):
        one.write(Path("/tmp/small"), seed=0)      # one.told: "4 of its 52 layers, 128 of 2688 wide"

A model of up to `SMALL` parameters is not changed. A larger one keeps two layers, or one of each kind if the config
lists kinds; hidden size and heads are divided by the same number, so head width stays, and feed-forward layers become
64 wide. The vocabulary stays complete, because the rehearsal uses real rows.
"""

import json
import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nemotron_engines.modeling.build import (
    ONLY_MADE,
    load_model,
    random_of,
    read_config,
    require_tensors,
    require_tokens,
    save_model,
)
from nemotron_engines.modeling.loaded import type_to_save
from nemotron_engines.modeling.scoring import load_scoring, with_score
from nemotron_engines.modeling.sizes import NOT_THE_FILE, count_parameters
from nemotron_shared.models.folder import FILE as GENERATION
from nemotron_shared.models.folder import config_of

__all__ = ["load_again", "require_tensors", "require_tokens", "smaller"]

SMALL = 5_000_000
"""Up to this many parameters, a model is rehearsed unchanged."""
LARGEST = 150_000_000
"""Largest rehearsal model, in parameters: with gradients, moments and files it takes 5 GB."""
NARROWEST, FEED_FORWARD = 64, 64
INNER = re.compile(r".*intermediate_size|ffn_dim|ffn_hidden_size|n_inner")
HEADS = ("num_attention_heads", "num_key_value_heads", "num_kv_heads", "num_heads", "mamba_n_heads", "n_groups",
         "mamba_n_groups")  # fmt: skip
INDICES = re.compile(r".*_(idxs|layers|layer_ids|indices)")
"""Keys of lists of layer numbers."""


@dataclass(frozen=True)
class Small:
    """A small model that can be built, with a description of what it keeps.

    Attributes:
        narrow: layer sizes were changed, although unknown constraints between them may exist.
    """

    source: Path
    config: Any
    told: str
    narrow: bool

    def write(self, into: Path, seed: int) -> None:
        """Write its folder, with random weights and the source's tokenizer."""
        model: Any = random_of(self.config, seed, ONLY_MADE)
        if gives_scores(self.source):
            model = with_score(model, seed)
        model.to(type_to_save(None, str(self.source)) or torch.float32)
        save_model(model, self.source, into)
        if (self.source / GENERATION).is_file():  # fail now if the library would refuse to save it again
            shutil.copyfile(self.source / GENERATION, into / GENERATION)


def gives_scores(folder: Path) -> bool:
    """Whether a model gives a text a score, and no text."""
    return any(name.endswith("ForSequenceClassification") for name in config_of(folder).get("architectures") or ())


def load_again(folder: Path) -> Any:
    """The model that a rehearsal saved, as what reads it next would load it.

    Raises:
        UserError: it cannot be loaded.
    """
    return load_scoring(folder, ONLY_MADE) if gives_scores(folder) else load_model(folder, ONLY_MADE)


def smaller(source: Path) -> Iterator[Small]:
    """Models of up to `LARGEST` parameters that can be made from a folder's config, smallest first.

    Raises:
        UserError: the folder has no model config.
    """
    config = read_config(source)
    for fields, told, narrow in _candidates(config):
        try:
            cut = type(config).from_dict(fields)
            fits = count_parameters(cut) <= LARGEST
        except NOT_THE_FILE:
            raise
        except Exception:  # an unknown constraint between sizes: try the next candidate
            fits = False
        if fits:
            yield Small(source, cut, told, narrow)


def _candidates(config: Any) -> Iterator[tuple[dict[str, Any], str, bool]]:
    whole = config.to_dict()
    if count_parameters(config) <= SMALL:
        yield whole, "its own size", False
        return
    text = config.get_text_config()
    for narrow in (True, False):
        fields, told = _cut(text, narrow=narrow)
        yield (fields if text is config else whole | {"text_config": fields}), told, narrow


def _cut(config: Any, *, narrow: bool) -> tuple[dict[str, Any], str]:
    fields, layers = config.to_dict(), config.num_hidden_layers
    kept = _kept_layers(fields, layers)
    for key, value in list(fields.items()):
        if _numbers_layers(key, value):
            fields[key] = [place for place, number in enumerate(kept) if number in value]
        elif isinstance(value, list) and len(value) == layers and layers > 1:
            fields[key] = [value[number] for number in kept]
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
    """Indices of the kept layers: one of each kind that the config lists, at least two."""
    lists = {key: value for key, value in fields.items() if isinstance(value, list)}
    chosen = [value for key, value in lists.items() if _numbers_layers(key, value)]
    each = [value for key, value in lists.items() if len(value) == layers and not _numbers_layers(key, value)]
    dense = fields.get("first_k_dense_replace")
    first: dict[str, int] = {}
    for number in range(layers):
        kinds = [*(one[number] for one in each), *(number in some for some in chosen)]
        kinds.append(isinstance(dense, int) and number < dense)
        first.setdefault(json.dumps(kinds, default=str), number)
    return sorted({*first.values()} if len(first) > 1 else range(min(2, layers)))


def _numbers_layers(key: str, value: Any) -> bool:
    """Whether a value is a list of layer numbers, not a list with one value per layer."""
    return isinstance(value, list) and bool(INDICES.fullmatch(key)) and len(set(map(str, value))) == len(value)


def _divisor(hidden: int, heads: int | None) -> int:
    """The largest divisor that leaves whole heads and a width of at least `NARROWEST`."""
    both = math.gcd(hidden, heads or hidden)
    return max(by for by in range(1, both + 1) if both % by == 0 and (hidden // by >= NARROWEST or by == 1))
