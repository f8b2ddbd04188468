"""Which rows of a pass through a model are tokens, for what counts inside of it: the others only fill it up.

note_real_rows(attention_mask)      before the pass
real_rows(index)                    the rows of a layer that are tokens
"""

from torch import Tensor


class _Pass:
    """The last pass that was begun, whose layers may be computed once more for the gradients."""

    mask: Tensor | None = None


def note_real_rows(mask: Tensor | None) -> None:
    """Say what the next pass holds: a mask of any shape with one value for each row, or None where all are tokens."""
    _Pass.mask = None if mask is None else mask.detach().flatten().bool()


def real_rows(rows: Tensor) -> Tensor:
    """Those of the rows (n, ...) that are tokens; all of them where the pass has another number of rows."""
    mask = _Pass.mask
    return rows if mask is None or len(mask) != len(rows) else rows[mask]
