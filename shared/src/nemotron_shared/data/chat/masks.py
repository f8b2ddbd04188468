"""From characters that the assistant wrote to tokens that are trained on, one conversation at a time."""

from collections.abc import Sequence

from tokenizers import Tokenizer

from nemotron_shared.data.chat.template import ADD_MARKS, Span
from nemotron_shared.errors import UserError


def tokenize_with_mask(tokenizer: Tokenizer, text: str, spans: Sequence[Span]) -> tuple[list[int], list[int]]:
    """As `mask_by_offsets`; raises `UserError` when every token would be trained on."""
    ids, mask = mask_by_offsets(tokenizer, text, spans)
    if mask and all(mask):
        raise UserError("the loss mask counts every token, the prompt included", ADD_MARKS)
    return ids, mask


def mask_by_offsets(tokenizer: Tokenizer, text: str, spans: Sequence[Span]) -> tuple[list[int], list[int]]:
    """Token ids of `text`, and for each a 1 where it shares a character with a span (disjoint, in order), else a 0.

    The mask is aligned with the ids: entry k is about token k. Nothing is added before or after the text.
    """
    # a post-processor adds nothing here, but may trim spaces off the offsets, which then fit no character
    processor, tokenizer.post_processor = tokenizer.post_processor, None
    try:
        encoding = tokenizer.encode(text, add_special_tokens=False)
    finally:
        tokenizer.post_processor = processor
    mask, current = [], 0
    for start, end in encoding.offsets:
        while current < len(spans) and spans[current][1] <= start:
            current += 1
        mask.append(int(current < len(spans) and start < end and spans[current][0] < end))
    return encoding.ids, mask
