"""From characters that the assistant wrote to tokens that are trained on, one conversation at a time."""

from bisect import bisect_right
from collections.abc import Sequence

from tokenizers import Tokenizer

from nemotron_data.chat.template import Span


def mask_by_offsets(tokenizer: Tokenizer, text: str, spans: Sequence[Span]) -> tuple[list[int], list[int]]:
    """Token ids of `text`, and for each a 1 where it belongs to a span (disjoint, in order), else a 0.

    As in transformers, a span goes from the token with its first character to the first token with its last one.
    The mask is aligned with the ids: entry k is about token k. Nothing is added before or after the text.
    """
    # a post-processor adds nothing here, but may trim spaces off the offsets, which then fit no character
    processor, tokenizer.post_processor = tokenizer.post_processor, None
    try:
        encoding = tokenizer.encode(text, add_special_tokens=False)
    finally:
        tokenizer.post_processor = processor
    starts, ends = [start for start, _ in encoding.offsets], [end for _, end in encoding.offsets]
    mask = [0] * len(ends)
    for start, end in spans:
        first, last = bisect_right(ends, start), bisect_right(ends, end - 1)
        # a last character without a token of its own, say one that was normalized away, ends the span before it
        stop = last + 1 if last < len(ends) and starts[last] < end else last
        mask[first:stop] = [1] * (stop - first)
    return encoding.ids, mask
