"""Tokenizer backends: many texts in, flat arrays out, by one of three libraries.

    encode(["Hello", "", "a b"])  ->  ids [9707, 2, 264, 293], offsets [0, 1, 1, 3]

One call for many texts and no Python integers: one call per text, or lists, would cost most of a fast library's speed.
MB of text per CPU-second on one thread with a vocabulary of 131k: gigatoken 170, fastokens 150, tokenizers 2.5. Each
library is imported only when it is loaded. A worker process loads the chosen one from an `EncoderSpec`.
"""

import importlib.metadata
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_data.tokenizers.limits import panics_told

Encoded = tuple[np.ndarray, np.ndarray]
EncodeCall = Callable[[Sequence[str]], Encoded]


class Encoder(ABC):
    """Encode texts like `tokenizers` with add_special_tokens=False, without truncation or padding.

    Names of special tokens inside a text become their ids, as in `tokenizers`.
    """

    name: ClassVar[str]

    @property
    def version(self) -> str:
        """Version of the library."""
        return importlib.metadata.version(self.name)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Concatenated ids of all texts, uint32, and int64 offsets (len(texts) + 1, the first 0).

        Raises:
            ValueError: a text with a lone surrogate.
            UserError: the library panics.
        """
        try:
            with panics_told(texts[0] if texts else ""):
                return self._encode(texts)
        except (TypeError, UnicodeEncodeError):
            for number, text in enumerate(texts):
                try:
                    text.encode()
                except UnicodeEncodeError as error:
                    what = f"text {number} is not Unicode: character {error.start} is a lone surrogate"
                    raise ValueError(what) from error
            raise

    def ways(self) -> list[EncodeCall]:
        """All code paths that `encode` may take, for the probe to test."""
        return [self.encode]

    @abstractmethod
    def _encode(self, texts: Sequence[str]) -> Encoded: ...


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Offsets from token counts: [1, 0, 2] -> [0, 1, 1, 3]."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def flatten(pieces: Sequence[np.ndarray]) -> Encoded:
    """Concatenate one array of ids per text."""
    lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
    ids = np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.uint32)
    return ids, offsets_of(lengths)


def one_thread() -> None:
    """Limit tokenizer libraries to one thread, because data preparation runs many processes.

    Must be called before a library's first call, which creates its threads.
    """
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


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


# A call of gigatoken takes as long as separating 2,000 characters (measured). Affects only speed.
LONG_TEXT = 2000


class GigatokenEncoder(Encoder):
    """gigatoken. Its batch call imports awkward, which takes half a second, so long texts go alone, others joined."""

    name = "gigatoken"

    def __init__(self, file: Path, joiner: Joiner | None = None) -> None:
        """Load `tokenizer.json`. `joiner` must be the result of `find_joiner` for it, or None."""
        one_thread()
        import gigatoken

        self._tokenizer: Any = gigatoken.Tokenizer(str(file))
        self.joiner = joiner

    def _encode(self, texts: Sequence[str]) -> Encoded:
        if len(texts) < 2 or sum(map(len, texts)) >= LONG_TEXT * len(texts):
            return self._one_by_one(texts)
        return self._all_in_one(texts)

    def ways(self) -> list[EncodeCall]:
        return [self._one_by_one, self._all_in_one]

    def _one_by_one(self, texts: Sequence[str]) -> Encoded:
        return flatten([self._tokenizer.encode(text) for text in texts])

    def _all_in_one(self, texts: Sequence[str]) -> Encoded:
        if self.joiner is None:
            layout = self._tokenizer.encode_batch(list(texts), parallel=False).layout
            return np.asarray(layout.content.data), np.asarray(layout.offsets.data).astype(np.int64)
        if not texts:
            return flatten([])
        pieces = [text.encode() for text in texts]
        return self.joiner.cut(self._tokenizer.encode(self.joiner.join(pieces)), pieces)


class FastokensEncoder(Encoder):
    """fastokens."""

    name = "fastokens"

    def __init__(self, file: Path) -> None:
        one_thread()
        import fastokens

        self._tokenizer = fastokens.Tokenizer.from_file(str(file))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def _encode(self, texts: Sequence[str]) -> Encoded:
        ids, offsets = self._tokenizer.encode_batch_flat(list(texts))
        return np.frombuffer(ids, dtype="<u4"), np.frombuffer(offsets, dtype="<u8").astype(np.int64)


class ReferenceEncoder(Encoder):
    """`tokenizers`, the slow reference that defines the correct ids."""

    name = "tokenizers"

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Disable truncation and padding of `tokenizer`, which would silently cut training data."""
        one_thread()
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer

    def _encode(self, texts: Sequence[str]) -> Encoded:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return flatten([np.array(encoding.ids, dtype=np.uint32) for encoding in encodings])


Backend = Literal["gigatoken", "fastokens", "tokenizers"]


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """Location of the tokenizer, and the library to read it with."""

    folder: Path
    backend: Backend
    joiner: Joiner | None = None

    def load(self) -> Encoder:
        """Load the encoder; takes about 0.3 s with a vocabulary of 131k, fastokens 1 s."""
        file = self.folder / "tokenizer.json"
        if self.backend == "gigatoken":
            return GigatokenEncoder(file, self.joiner)
        if self.backend == "fastokens":
            return FastokensEncoder(file)
        return ReferenceEncoder(TokenizerFolder(self.folder).tokenizer)


class WorkerEncoder:
    """Picklable encoder for worker processes.

    Forked workers share the one that was loaded for the probe. It is not pickled: a spawned process loads its own from
    the spec, once.
    """

    def __init__(self, spec: EncoderSpec, loaded: Encoder | None = None) -> None:
        self.spec = spec
        self._loaded = loaded

    def encode(self, texts: Sequence[str]) -> Encoded:
        """As `Encoder.encode`."""
        if self._loaded is None:
            self._loaded = self.spec.load()
        return self._loaded.encode(texts)

    def __getstate__(self) -> dict[str, Any]:
        return {"spec": self.spec, "_loaded": None}
