"""Reference results from `tokenizers`, for a tokenizer and some texts.

It takes 0.3 s to load a vocabulary of 131k, as do the fast libraries; loading both in parallel takes no longer than
one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from nemotron_data.encoders.backends import ReferenceEncoder
from nemotron_data.encoders.base import Encoded
from nemotron_data.encoders.hard_cases import hard_cases
from nemotron_data.encoders.joining import Joiner, find_joiner
from nemotron_data.encoders.loss_masks import token_bytes
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_shared.runtime.background import call_in_background


@dataclass(frozen=True)
class Reference:
    """Attributes:
    texts: built-in hard cases and a sample of the data.
    encoded: their ids.
    joiner: a token that can separate texts.
    vocab_size: number of ids, special tokens included.
    ids: ids of the special tokens that the folder names, by role.
    added: ids that the post-processor adds before a text, and those after it.
    token_bytes: bytes of each token, see `token_bytes`; also None if not requested.
    """

    texts: list[str]
    encoded: Encoded
    joiner: Joiner | None
    vocab_size: int
    ids: dict[str, int]
    added: tuple[tuple[int, ...], tuple[int, ...]]
    token_bytes: np.ndarray | None


def ask(folder: TokenizerFolder, sample: Sequence[str], with_bytes: bool) -> Reference:
    """Load the tokenizer and compute the reference.

    Raises:
        ValueError: a text of the sample has a lone surrogate.
    """
    tokenizer = folder.tokenizer
    texts = [*hard_cases(tokenizer), *sample]
    return Reference(
        texts=texts,
        encoded=ReferenceEncoder(tokenizer).encode(texts),
        joiner=find_joiner(tokenizer),
        vocab_size=folder.vocab_size,
        ids=folder.special_ids(),
        added=_added(tokenizer),
        token_bytes=token_bytes(folder) if with_bytes else None,
    )


def _added(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    encoding = tokenizer.encode("a")
    text = [at for at, special in enumerate(encoding.special_tokens_mask) if not special]
    return (tuple(encoding.ids[: text[0]]), tuple(encoding.ids[text[-1] + 1 :])) if text else ((), ())


def ask_in_background(folder: TokenizerFolder, sample: Sequence[str], with_bytes: bool) -> Callable[[], Reference]:
    """Start `ask` in the background; call the result to wait for it."""
    return call_in_background(ask, folder, sample, with_bytes)
