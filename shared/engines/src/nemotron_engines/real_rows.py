"""Record which rows of a forward pass are real tokens and not padding, for counters inside the model.

note_real_rows(attention_mask)      before the pass
tokens_of_experts(index, 8)         number of real tokens per expert
"""

from torch import Tensor


class _Pass:
    """The latest pass, whose layers may be recomputed for the gradients."""

    mask: Tensor | None = None


def note_real_rows(mask: Tensor | None) -> None:
    """Set the mask of the next pass: any shape, one value per row; None if all rows are tokens."""
    _Pass.mask = None if mask is None else mask.detach().flatten().bool()


def tokens_of_experts(index: Tensor, experts: int) -> Tensor:
    """Number of the pass's tokens per expert, (experts,) int64, without waiting for a GPU.

    Args:
        index: (tokens, k), the experts of each token; all count if the number of tokens differs from the pass's.
    """
    mask = _Pass.mask
    counted = index.new_ones(len(index)) if mask is None or len(mask) != len(index) else mask.to(index)
    each = counted[:, None].expand_as(index)
    return index.new_zeros(experts).scatter_add_(0, index.flatten(), each.flatten())
