"""Assign questions to training or evaluation by their key alone.

    side of "3+5+8-7"  ->  the first bytes of SHA-256("3+5+8-7")  ->  train or eval

Independent of the seed: a question held out with one seed is held out with all of them.
"""

import hashlib


def is_held_out(key: str, one_in: int) -> bool:
    """Whether `key` is one of the `1/one_in` of all keys reserved for evaluation."""
    digest = hashlib.sha256(key.encode()).digest()
    return int.from_bytes(digest[:8], "big") % one_in == 0
