"""Find a special token that can separate texts, to encode many of them with one call.

    "Hello" "a b"  ->  "Hello</s>a b"  ->  [9707, 2, 264, 293]  ->  cut at every 2

A special token's name is split off a text before any other step, so the texts on its two sides cannot influence each
other, provided that no other token's name can overlap it.
"""

from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from nemotron_data.encoders.base import Encoded
from nemotron_data.encoders.layout import is_plain_byte_level


@dataclass(frozen=True, slots=True)
class Joiner:
    """A special token as separator: its name, such as `</s>`, and its id."""

    text: str
    id: int

    def join(self, texts: list[bytes]) -> bytes:
        """Texts as UTF-8, joined by the separator."""
        return self.text.encode().join(texts)

    def cut(self, ids: np.ndarray, texts: list[bytes]) -> Encoded:
        """Remove the separators from the ids of `join(texts)`, but keep those that are in the texts themselves."""
        at = np.flatnonzero(ids == self.id)
        if len(at) != len(texts) - 1:
            inside = np.fromiter((text.count(self.text.encode()) for text in texts[:-1]), np.int64, len(texts) - 1)
            at = at[np.cumsum(inside) + np.arange(len(texts) - 1)]
        keep = np.ones(len(ids), dtype=bool)
        keep[at] = False
        offsets = np.concatenate([[0], at - np.arange(len(at)), [len(ids) - len(at)]])
        return ids[keep], offsets.astype(np.int64)


def find_joiner(tokenizer: Tokenizer) -> Joiner | None:
    """An added token that is safe as a separator, or None.

    The last ones are tried first: they are reserved names, which texts hardly ever mention.
    """
    added = tokenizer.get_added_tokens_decoder()
    if not is_plain_byte_level(tokenizer) or any(token.single_word for token in added.values()):
        return None
    names = [token.content for token in added.values()]
    for number, token in sorted(added.items(), reverse=True):
        name = token.content
        # long enough not to occur by chance, and matched in the text without normalization
        usable = token.special and not token.normalized and len(name) > 2 and name.isprintable()
        if usable and not any(_may_overlap(other, name) for other in names):
            return Joiner(name, number)
    return None


def _may_overlap(name: str, joiner: str) -> bool:
    """Whether `name`, at the end of a text or longer than the joiner, could take characters from the joiner.

    The longest name at the first position wins, so names that start inside the joiner are harmless.
    """
    if name != joiner and name.startswith(joiner):
        return True
    tails = (name[start:] for start in range(1, len(name)))
    return any(tail.startswith(joiner) or joiner.startswith(tail) for tail in tails)
