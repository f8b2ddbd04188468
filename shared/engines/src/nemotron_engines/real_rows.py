"""Which rows of a pass through a model are tokens, for what counts inside of it: the others only fill it up.

note_real_rows(attention_mask)      before the pass
tokens_of_experts(index, 8)         how many of those each expert gets
"""

from torch import Tensor


class _Pass:
    """The last pass that was begun, whose layers may be computed once more for the gradients."""

    mask: Tensor | None = None


def note_real_rows(mask: Tensor | None) -> None:
    """Say what the next pass holds: a mask of any shape with one value for each row, or None where all are tokens."""
    _Pass.mask = None if mask is None else mask.detach().flatten().bool()


def tokens_of_experts(index: Tensor, experts: int) -> Tensor:
    """How many tokens of the pass each expert gets, (experts,) int64, without waiting for a GPU.

    Args:
        index: (tokens, k), the experts of each token; where the pass has another number of tokens, all count.
    """
    mask = _Pass.mask
    counted = index.new_ones(len(index)) if mask is None or len(mask) != len(index) else mask.to(index)
    each = counted[:, None].expand_as(index)
    return index.new_zeros(experts).scatter_add_(0, index.flatten(), each.flatten())
