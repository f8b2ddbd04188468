"""Check for token ids without an embedding, from damaged data or a different tokenizer."""

import numpy as np

from nemotron_shared.errors import UserError


def require_known_ids(ids: np.ndarray, vocab_size: int, where: str) -> None:
    """Refuse ids outside the vocabulary, for which an embedding would read out of bounds or crash.

    Raises:
        UserError: an unknown id; `where` gives file and row.
    """
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= vocab_size):
        outside = ids[(ids < 0) | (ids >= vocab_size)]
        raise UserError(
            f"{where}: token id {outside[0]} is outside the model's vocabulary of {vocab_size}",
            "if the data is damaged or made for another model, run its data preparation again with --force; if its "
            "tokenizer has added tokens that the model lacks, leave data_prep.control_tokens at 'text'",
        )
