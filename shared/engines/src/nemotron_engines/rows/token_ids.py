"""Token ids that a model has no embedding for: damaged data, or data of another tokenizer."""

import numpy as np

from nemotron_shared.errors import UserError


def require_known_ids(ids: np.ndarray, vocab_size: int, where: str) -> None:
    """Refuse ids outside the vocabulary, which an embedding would read beyond its end for, or crash on.

    Raises:
        UserError: says `where`, a file and a row of it.
    """
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= vocab_size):
        outside = ids[(ids < 0) | (ids >= vocab_size)]
        raise UserError(
            f"{where}: token id {outside[0]} lies outside the model's vocabulary of {vocab_size}",
            "the data is damaged, or made for another model: run its data preparation again with --force; or its "
            "tokenizer has added tokens that the model has no rows for: leave data_prep.control_tokens at 'text'",
        )
