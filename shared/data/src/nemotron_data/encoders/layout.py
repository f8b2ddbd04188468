"""Detect plain byte-level BPE, whose tokens are exactly the bytes of the text.

    "héllo"  ->  "hÃ©" "llo"   every character of a token stands for one byte: 3 + 3 bytes

True of GPT-2, Llama 3 and Nemotron 3; not of tokenizers that normalize the text, or put a space in front of it.
"""

import json
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

# Pre-tokenizers that only cut the text. Others drop or change characters.
CUTTING = ("Digits", "Punctuation", "Split")


def is_plain_byte_level(tokenizer: Tokenizer) -> bool:
    """Whether the tokens' bytes, in order, are the text's bytes."""
    model: Any = tokenizer.model
    if tokenizer.normalizer is not None or tokenizer.pre_tokenizer is None or not isinstance(model, BPE):
        return False
    if model.dropout or model.byte_fallback or model.continuing_subword_prefix or model.end_of_word_suffix:
        return False
    # cuts first, then the one step that turns bytes into characters
    settings = json.loads(tokenizer.pre_tokenizer.__getstate__())
    *cuts, last = settings["pretokenizers"] if settings["type"] == "Sequence" else [settings]
    return (
        last["type"] == "ByteLevel"
        and not last["add_prefix_space"]
        and all(cut["type"] in CUTTING and cut.get("behavior") != "Removed" for cut in cuts)
        and not any(token.lstrip or token.rstrip for token in tokenizer.get_added_tokens_decoder().values())
        and all(tokenizer.token_to_id(byte) is not None for byte in ByteLevel.alphabet())
    )
