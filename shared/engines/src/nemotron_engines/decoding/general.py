"""Prefill, and decoding with any causal model of transformers, by the model's own forward function and cache.

In the cache, attention keys are padded on the left, so that the newest token of each sequence is in the last column;
the mask hides the padding. Mamba states have no length, and are only stacked.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import (
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)
from transformers.models.llama.modeling_llama import LlamaForCausalLM
from transformers.models.mistral.modeling_mistral import MistralForCausalLM
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM

from nemotron_engines.kernels.mamba_install import is_older

KNOWN = (LlamaForCausalLM, MistralForCausalLM, NemotronHForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
"""Architectures whose step we compute ourselves, and whose prompts are read in parts."""
TOGETHER = 4096
"""Tokens, of all rows, that are read in one pass: it bounds the memory of a long prompt."""
SHARED = 32
"""Tokens of a common beginning, from which on it is read once for all prompts."""
BLOCK = 32
"""Columns by which the memory of keys grows."""


class Growing(DynamicLayer):
    """A layer of keys and values with room for more, into which new ones are written.

    transformers 5.23 copies all keys to append one.
    """

    _room: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """All keys and values (rows, heads, tokens, d), the new ones at the end."""
        before, keys, values = self.get_seq_length(), self.keys, self.values
        if not before or keys is None or values is None:
            return super().update(key_states, value_states, *args, **kwargs)
        after = before + key_states.shape[-2]
        if self._room is None or after > self._room[0].shape[2]:
            self._room = (_with_room(keys, after), _with_room(values, after))
        for room, states in zip(self._room, (key_states, value_states), strict=True):
            room[:, :, before:after] = states
        found = (self._room[0][:, :, :after], self._room[1][:, :, :after])
        self.keys, self.values = found
        return found

    def forget_room(self) -> None:
        """The keys and values were replaced by others."""
        self._room = None


def _with_room(held: Tensor, tokens: int) -> Tensor:
    """The same (rows, heads, tokens, d), in a larger tensor."""
    capacity = tokens + max(BLOCK, tokens // 8)
    room = held.new_empty(*held.shape[:2], capacity, held.shape[3])
    room[:, :, : held.shape[2]] = held
    return room


JOINED = (DummyLayer, DynamicLayer, Growing, LinearAttentionLayer, LinearAttentionAndFullAttentionLayer)
STATES = ("conv_states", "recurrent_states")
Prefilled = tuple[DynamicCache, int]
"""The memory of prompts of one length, and this length."""


def prefill(model: Any, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, DynamicCache]:
    """Read prompts of one length: logits after each (prompts, vocabulary), and the model's memory of them.

    A prompt that occurs several times is read once, and so is a long beginning that all prompts share, such as a system
    prompt or examples.
    """
    distinct = list(dict.fromkeys(map(tuple, prompts)))
    ids = torch.tensor(distinct, device=model.device)
    cache = DynamicCache(config=model.config)
    cache.layers = [Growing() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    shared = _shared(distinct) if reads_in_parts(model) else 0
    if shared >= SHARED:
        _read(model, ids[:1, :shared], cache)
        keep(cache, [0] * len(distinct), shared)
        ids = ids[:, shared:]
    logits = _read(model, ids, cache)
    if len(distinct) < len(prompts):
        number = {prompt: row for row, prompt in enumerate(distinct)}
        rows = [number[tuple(prompt)] for prompt in prompts]
        keep(cache, rows, len(prompts[0]))
        logits = logits[rows]
    return logits, cache


def _shared(prompts: list[tuple[int, ...]]) -> int:
    """Number of tokens with which all of several prompts begin; each has at least one more."""
    if len(prompts) == 1:
        return 0
    first, last = min(prompts), max(prompts)  # all others are between them
    return next(place for place, (one, other) in enumerate(zip(first, last, strict=True)) if one != other)


def _read(model: Any, ids: Tensor, cache: DynamicCache) -> Tensor:
    """Continue the sequences of a cache by ids (rows, tokens): logits after them (rows, vocabulary)."""
    many = max(1, TOGETHER // len(ids)) if reads_in_parts(model) else ids.shape[1]
    logits = ids.new_zeros(0)
    for part in ids.split(many, 1):
        logits = model(input_ids=part, **_taken(model, cache), use_cache=True, logits_to_keep=1).logits[:, -1]
    return logits


def reads_in_parts(model: Any) -> bool:
    """Whether several tokens can be read after others; transformers' own step of other models may not allow it."""
    older = isinstance(model, NemotronHForCausalLM) and is_older()
    return type(model) in KNOWN and joins(model) and not older


def only_states(model: Any) -> bool:
    """A model without attention, such as Mamba2, whose states need neither mask nor positions."""
    return "cache_params" in inspect.signature(type(model).forward).parameters


def _taken(model: Any, cache: Any) -> dict[str, Any]:
    """The cache by the name under which the model's class takes it: by another one it would be passed over."""
    return {"cache_params" if only_states(model) else "past_key_values": cache}


def joins(model: Any) -> bool:
    """Whether several sequences can be continued at once: not with sliding windows, for example."""
    try:
        layers = DynamicCache(config=model.config).layers
    except (KeyError, AttributeError, TypeError, ValueError):  # of its own class, which may have its own memory
        return False
    return all(type(layer) in JOINED for layer in layers)


def join(first: DynamicCache, second: DynamicCache) -> DynamicCache:
    """Append the rows of `second` to `first`."""
    pairs: list[tuple[Any, Any]] = list(zip(first.layers, second.layers, strict=True))
    for one, other in pairs:
        for states in STATES:
            here, there = getattr(one, states, {}), getattr(other, states, {})
            for index in here:
                if here[index] is not None:
                    here[index] = torch.cat([here[index], there[index]])
        if getattr(one, "keys", None) is not None:
            one.keys = torch.cat(_as_wide(one.keys, other.keys))
            one.values = torch.cat(_as_wide(one.values, other.values))
            _forget_room(one)
    return first


def _forget_room(layer: Any) -> None:
    """Free the memory of a layer's former keys now: its next step comes after those of all layers before it."""
    if isinstance(layer, Growing):
        layer.forget_room()


def _as_wide(one: Tensor, other: Tensor) -> list[Tensor]:
    """Pad both (rows, heads, width, channels) on the left to the same width."""
    width = max(one.shape[-2], other.shape[-2])
    return [F.pad(each, (0, 0, width - each.shape[-2], 0)) for each in (one, other)]


def keep(cache: DynamicCache, rows: list[int], width: int) -> None:
    """Keep only these rows, and the last `width` columns of the keys."""
    layers: list[Any] = cache.layers
    for layer in layers:
        for states in STATES:
            found: dict[int, Any] = getattr(layer, states, {})
            for index, state in found.items():
                if state is not None:
                    found[index] = state[rows]
        if getattr(layer, "keys", None) is not None:
            layer.keys = layer.keys[rows, :, layer.keys.shape[-2] - width :]
            layer.values = layer.values[rows, :, layer.values.shape[-2] - width :]
            _forget_room(layer)


class General:
    """Sequences of any model."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.clear()

    def clear(self) -> None:
        """Forget all sequences."""
        self._cache: DynamicCache | None = None
        self._mask = torch.zeros(0, 0, dtype=torch.long)

    def add(self, *prefilled: Prefilled) -> None:
        """Add prefilled prompts; more than one sequence only where `joins` allows it."""
        for cache, length in prefilled:
            self._add(cache, length)

    def _add(self, cache: DynamicCache, length: int) -> None:
        count = cache_rows(cache)
        if self._cache is None:
            self._cache, self._mask = cache, torch.ones(count, length, dtype=torch.long)
            return
        self._cache = join(self._cache, cache)
        width = max(self._mask.shape[1], length)
        mask = torch.zeros(len(self._mask) + count, width, dtype=torch.long)
        mask[: len(self._mask), width - self._mask.shape[1] :] = self._mask
        mask[len(self._mask) :, width - length :] = 1
        self._mask = mask

    def step(self, ids: Tensor) -> Tensor:
        """Logits (sequences, vocabulary) after the next token of each sequence."""
        self._mask = torch.cat([self._mask, torch.ones(len(self._mask), 1, dtype=torch.long)], 1)
        device, places = self._model.device, {}
        if not only_states(self._model):
            places["attention_mask"] = self._mask.to(device)
            places["position_ids"] = (self._mask.sum(1, keepdim=True) - 1).to(device)
        cache = _taken(self._model, self._cache)
        return self._model(input_ids=ids.to(device)[:, None], **places, **cache, use_cache=True).logits[:, -1]

    def keep(self, rows: list[int]) -> None:
        """Continue only these sequences."""
        assert self._cache is not None
        mask = self._mask[rows]
        width = int(mask.sum(1).max())
        self._mask = mask[:, mask.shape[1] - width :]
        keep(self._cache, rows, width)


def cache_rows(cache: DynamicCache) -> int:
    """Number of sequences in a cache."""
    layers: list[Any] = cache.layers
    for layer in layers:
        for state in (getattr(layer, "keys", None), *(s for name in STATES for s in getattr(layer, name, {}).values())):
            if state is not None:
                return len(state)
    raise ValueError("a cache of no layers")
