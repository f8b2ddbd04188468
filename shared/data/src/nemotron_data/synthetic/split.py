"""Which side of the train/eval split a question belongs to: decided by its key alone.

    side of "3+5+8-7"  ->  the first bytes of SHA-256("3+5+8-7")  ->  train or eval

The seed has no say, so a question held out with one seed is held out with all of them.
"""

import hashlib


def is_held_out(key: str, one_in: int) -> bool:
    """Whether `key` is one of the `1/one_in` of all keys that only evaluation may see."""
    digest = hashlib.sha256(key.encode()).digest()
    return int.from_bytes(digest[:8], "big") % one_in == 0
