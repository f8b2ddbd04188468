"""The tiny tokenizer, made on the spot: byte-level BPE with single digits and a chat template.

    <|im_start|>user
    What is 3+14-5?<|im_end|>
    <|im_start|>assistant
    <think>3+14=17
    17-5=12</think>12<|im_end|>

512 tokens: 12 special ones, the 256 bytes (so that any text round-trips), and merges learnt from world
text of a fixed seed (so that the folder has the same bytes on every machine).

`<|im_end|>` is the end-of-sequence token, of a chat turn and of a document alike. Generation, TRL and
lm-eval then all stop in the right place with one id, and pretraining already teaches what an end is.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from nemotron_shared.atomic import write_json, write_text
from nemotron_shared.data.world import chats, pretrain_documents

VOCAB_SIZE = 512
TRAINING_SEED = 0
TRAINING_ROWS = 2000

CONTROL_TOKENS = ["<pad>", "<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
# Not "special" to the library: decoding keeps them, because what is inside them is looked at.
MARKUP_TOKENS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
NAMED_TOKENS = {
    "bos_token": "<s>",
    "eos_token": "<|im_end|>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
}

CHAT_TEMPLATE = (Path(__file__).parent / "chat_template.jinja")


def training_texts() -> list[str]:
    texts = [row["text"] for row in pretrain_documents(TRAINING_SEED, TRAINING_ROWS)]
    for row in chats(TRAINING_SEED, TRAINING_ROWS):
        texts += [f"{message['role']}\n{message['content']}" for message in row["messages"]]
    return texts + ["system\n", "tool\n"] * TRAINING_ROWS


@cache
def build_tokenizer() -> Tokenizer:
    """Train the tokenizer; every call, in every process, gives the same one."""
    tokenizer = Tokenizer(BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[*CONTROL_TOKENS, *MARKUP_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_texts(), trainer)
    return _with_visible_markup(tokenizer)


def _with_visible_markup(tokenizer: Tokenizer) -> Tokenizer:
    """The trainer marks every token it was given as special; only the control tokens are."""
    content = json.loads(tokenizer.to_str())
    for token in content["added_tokens"]:
        token["special"] = token["content"] in CONTROL_TOKENS
    return Tokenizer.from_str(json.dumps(content))
