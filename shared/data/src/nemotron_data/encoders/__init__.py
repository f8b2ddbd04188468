"""Encode texts with the fastest tokenizer library that gives exactly the ids of `tokenizers`.

choice = choose_encoder(folder, sample)            # gigatoken, fastokens or tokenizers
ids, offsets = choice.encoder.encode(["Hello", "", "a b"])
ids      array([9707,  264,  293], dtype=uint32)   # concatenated
offsets  array([0, 1, 1, 3])                       # text k is ids[offsets[k]:offsets[k + 1]]
"""

from nemotron_data.encoders.backends import Encoded, Encoder, EncoderSpec, WorkerEncoder, one_thread
from nemotron_data.encoders.choice import BackendRequest, EncoderChoice, Reference, choose_encoder
from nemotron_data.encoders.masks import masks_from_spans, token_bytes

__all__ = [
    "BackendRequest",
    "Encoded",
    "Encoder",
    "EncoderChoice",
    "EncoderSpec",
    "Reference",
    "WorkerEncoder",
    "choose_encoder",
    "masks_from_spans",
    "one_thread",
    "token_bytes",
]
