"""Attention over the documents of packed rows by torch's own flash attention, in mixed precision on a GPU.

transformers keeps documents apart by a mask of tokens times tokens, for which sdpa has no flash attention: it computes
all pairs of a row's tokens, even across documents. Here each document is a separate sequence for the kernel, without a
mask.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import NemotronHConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from nemotron_engines.lora.kinds import without_adapters

NAME = "sdpa_by_document"
HALF = (torch.bfloat16, torch.float16)
Collator = Callable[[Any], dict[str, Any]]


def register_packed_attention() -> str:
    """Register the implementation with transformers; returns its name.

    Without the document bounds of `attend_by_document`, it falls back to sdpa with masks.
    """
    ALL_ATTENTION_FUNCTIONS.register(NAME, packed_attention_forward)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)
    return NAME


def attend_by_document(model: Any, collate: Collator) -> Collator:
    """Change a model that was loaded with this attention to use the documents of a batch instead of a mask.

    Args:
        collate: makes a batch with `position_ids` (rows, tokens), which restart with each document.

    Returns:
        The collate function for the changed model.
    """
    base = without_adapters(model)
    if not isinstance(base.config, NemotronHConfig) or base.config._attn_implementation != NAME:
        return collate
    inner = base.model
    plain = inner.forward

    def forward(document_bounds: Any = None, longest_document: Any = None, **given: Any) -> Any:
        mixed = torch.is_autocast_enabled("cuda") or inner.dtype in HALF
        if document_bounds is None or not mixed:  # the kernel does not support float32
            return plain(**given)
        given["attention_mask"] = {"full_attention": None, "linear_attention": None}
        return plain(**given, document_bounds=document_bounds, longest_document=longest_document)

    def collate_with_documents(rows: Any) -> dict[str, Any]:
        batch = collate(rows)
        return batch | document_inputs(batch["position_ids"])

    inner.forward = forward
    return collate_with_documents


def document_inputs(position_ids: Tensor) -> dict[str, Any]:
    """Document starts in a flattened batch, plus its end, (documents + 1,) int32; and the longest document's length."""
    starts = (position_ids.flatten() == 0).nonzero()[:, 0]
    bounds = torch.cat([starts, starts.new_tensor([position_ids.numel()])])
    return {"document_bounds": bounds.int(), "longest_document": int(bounds.diff().max())}


def packed_attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    document_bounds: Tensor | None = None,
    longest_document: int = 0,
    **given: Any,
) -> tuple[Tensor, None]:
    """Attention in the form of transformers: three tensors (rows, heads, tokens, d) to one (rows, tokens, heads, d)."""
    if document_bounds is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **given)
    from torch.nn.attention.varlen import varlen_attn

    rows, heads, tokens, _ = query.shape
    repeats = heads // key.shape[1]
    whole = [query, key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)]
    flat = [one.transpose(1, 2).flatten(0, 1) for one in whole]
    bounds = (document_bounds, document_bounds, longest_document, longest_document)
    out: Any = varlen_attn(*flat, *bounds, scale=scaling, window_size=(-1, 0))
    return out.unflatten(0, (rows, tokens)), None
