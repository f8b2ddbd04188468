"""Model inputs that keep the documents of a packed row apart.

A row of 8 tokens that holds documents of 5 and 3 tokens has the starts [0, 5] and gives

    position_ids  0 1 2 3 4 0 1 2      attention: transformers masks where positions restart
    seq_idx       0 0 0 0 0 1 1 1      Mamba: state and convolution are reset where the number changes

Call `model(input_ids, **packed_inputs(starts, length), attention_mask=None, use_cache=False)`: with an attention mask
or a cache, transformers would ignore the positions.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from nemotron_shared.errors import UserError


def packed_inputs(seq_start_id: Sequence[Sequence[int]], length: int) -> dict[str, Tensor]:
    """`position_ids` (rows, length) int64 and `seq_idx` (rows, length) int32 from each row's document starts.

    Raises:
        UserError: a row's starts do not begin with 0, do not increase, or exceed `length`.
    """
    seq_idx = torch.zeros(len(seq_start_id), length, dtype=torch.int32)
    position_ids = torch.arange(length).repeat(len(seq_start_id), 1)
    for row, starts in enumerate(seq_start_id):
        bounds = [*starts, length]
        if bounds[0] != 0 or any(b <= a for a, b in pairwise(bounds)):
            raise UserError(
                f"packed row {row}: seq_start_id {list(starts)} does not divide {length} tokens into documents",
                "starts must begin with 0, increase strictly, and be below the row's length",
            )
        sizes = torch.tensor(bounds).diff()
        seq_idx[row] = torch.arange(len(sizes), dtype=torch.int32).repeat_interleave(sizes)
        position_ids[row] -= torch.tensor(bounds[:-1]).repeat_interleave(sizes)
    return {"position_ids": position_ids, "seq_idx": seq_idx}
