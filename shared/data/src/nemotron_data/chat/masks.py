"""Convert assistant character spans to token masks, one conversation at a time."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from tokenizers import Tokenizer

from nemotron_data.chat.template import Span
from nemotron_data.tokenizers.limits import panics_told


def mask_by_offsets(
    tokenizer: Tokenizer, text: str, spans: Sequence[Span], cuts: Sequence[int] = ()
) -> tuple[list[int], list[int]]:
    """Token ids of `text`, and a mask: 1 for tokens in a span (disjoint, sorted), else 0.

    As in transformers, a span covers the tokens from the one with its first character to the first one with its last
    character. The mask is aligned with the ids: entry k is about token k. No tokens are added before or after the text,
    which is encoded in the pieces between the `cuts`.
    """
    # a post-processor adds nothing here, but may trim spaces off the offsets, which then match no character
    processor, tokenizer.post_processor = tokenizer.post_processor, None
    ids: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    try:
        for begin, end in pairwise([0, *cuts, len(text)]):
            with panics_told(text[begin:end]):
                encoding = tokenizer.encode(text[begin:end], add_special_tokens=False)
            ids += encoding.ids
            starts += [begin + start for start, _ in encoding.offsets]
            ends += [begin + stop for _, stop in encoding.offsets]
    finally:
        tokenizer.post_processor = processor
    mask = [0] * len(ends)
    for start, end in spans:
        first, last = bisect_right(ends, start), bisect_right(ends, end - 1)
        # if the last character has no token, say because it was normalized away, the span ends with the token before it
        stop = last + 1 if last < len(ends) and starts[last] < end else last
        mask[first:stop] = [1] * (stop - first)
    return ids, mask
