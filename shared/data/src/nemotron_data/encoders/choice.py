r"""Choose the fastest tokenizer library that gives the right ids for this tokenizer and this data.

choice.backend   "fastokens"
choice.skipped   {"gigatoken": "cannot load it: Unsupported pre_tokenizer type: Sequence (no Split regex found)"}

The reference is `tokenizers`, on a sample of the data and on texts on which the libraries are known to differ, such as
"x\u200dy" and "s> 7777777777". Loading takes 0.3 s with a vocabulary of 131k, so two libraries load in parallel.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import numpy as np
from tokenizers import Tokenizer

from nemotron_data.encoders.backends import (
    Backend,
    Encoded,
    Encoder,
    EncoderSpec,
    GigatokenEncoder,
    Joiner,
    ReferenceEncoder,
    WorkerEncoder,
    find_joiner,
)
from nemotron_data.encoders.masks import token_bytes
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_shared.system.background import call_in_background
from nemotron_shared.system.errors import UserError

TOKENS_TRIED = 24

FIXED = (
    "",
    " ",
    "\n",
    "\t\t\tx\t ",
    "trailing  \n  leading\r\n\r\n\rmixed\n\r",
    " " * 50,
    "a" + " " * 33 + "b  c   d",
    "\n\n\n \n  \n\t\n",
    "\u00a0\u2003\u3000 \u2028\u2029\u0085\v\f",
    "日本語のテキスト。中文,한국어 ไทย हिन्दी",
    "e\u0301e\u0302\u0323 n\u0303 \u0301alone Å\u212bﬁ İı ẞß",
    "العربية \u200fעברית\u200e \u202eabc\u202c",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷🇩 👍🏽 ☎️ \U0010ffff \U0001f9ff",
    "x\u200dy\u200cz\u00adw\u2060\ufeff",
    "\ufeffstarts with a byte order mark",
    "NUL\x00inside\x00\x00",
    "".join(map(chr, range(1, 32))) + "\x7f\x80\x9f",
    "0123456789" * 40,
    "3.14159 1,000,000 ٣٤٥ ²³¹ Ⅻ ½ 0x7fFF 1e-9",
    "don't I'LL we've it's 'S 'sa 'tis O'Neil’s",
    "CamelCaseHTTPServer snake_case kebab-case ALLCAPS mIxEd ǅǆǄ ʰ",
    "def f(x):\n    return {k: v[0] for k, v in x.items()}  # noqa\n\n\n\tif (a&&b||!c) { i+=1; }\n",
    "https://example.org/a//b?c=d&e=%20#f <div class='x'>&amp;</div> //---***===",
    "word" * 700,
    "é" * 300 + "字" * 300 + "😀" * 100,
    "!?" * 200 + "...…—–-“”«»",
    "\U00020000\U0001d54f\ufffd\ufffe\uffff",
)


def hard_cases(tokenizer: Tokenizer) -> list[str]:
    """Fixed texts, and the tokenizer's own special tokens in every awkward position."""
    names = [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items())]
    tried = names[: TOKENS_TRIED - 1] + names[TOKENS_TRIED - 1 :][-1:]
    cases = [*FIXED, "".join(tried), " ".join(tried), "\n".join(reversed(tried))]
    for name in tried:
        half = len(name) // 2
        start, end = name[:half], name[half:]
        cases += [
            name,
            f"word{name}word  {name}  {name}\n{name}\n\n 12{name}34",
            name * 3 + " ",
            f" {name} ",
            start,
            end,
            f"{start} {end} {start}{name}{end} {start}{start}{end}{end}",
            name.upper() + name.lower() + name[:-1] + "\u0301",
        ]
    return cases


def _difference(encoder: Encoder, reference: "Reference") -> str | None:
    """Why the encoder may not be used, or None if all its code paths give the expected ids."""
    texts, (ids, offsets) = reference.texts, reference.encoded
    expected = np.split(ids, offsets[1:-1])
    for way in encoder.ways():
        ids, offsets = way(texts)
        if len(offsets) != len(texts) + 1:
            raise ValueError(f"{len(offsets) - 1} results for {len(texts)} texts")
        found = np.split(ids, offsets[1:-1])
        if count := sum(not np.array_equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True)):
            return f"{count:,} of {len(texts):,} documents get other ids than from tokenizers"
    return None


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


BackendRequest = Literal["auto", "gigatoken", "fastokens", "tokenizers"]
FAST: tuple[Backend, ...] = ("gigatoken", "fastokens")


@dataclass(frozen=True)
class EncoderChoice:
    """The chosen backend, the reference ids, the number of texts compared, and why faster backends were skipped."""

    encoder: Encoder
    spec: EncoderSpec
    reference: Reference
    probed: int = 0
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def backend(self) -> Backend:
        """Name of the library."""
        return self.spec.backend

    @property
    def version(self) -> str:
        """Version of the library."""
        return self.encoder.version

    def for_workers(self) -> WorkerEncoder:
        """The encoder in a form to send to worker processes."""
        return WorkerEncoder(self.spec, self.encoder)

    def as_metadata(self) -> dict[str, Any]:
        """Metadata for the manifest. Not part of the identity of a result, which is the same with every backend."""
        return {"backend": self.backend, "version": self.version, "probed": self.probed, "skipped": self.skipped}

    def announcement(self) -> str | None:
        """One line for the user if no fast library can be used; None if one is, or none was wanted."""
        if self.backend != "tokenizers" or not self.skipped:
            return None
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.skipped.items())
        return f"tokenizing about 50 times slower, with tokenizers ({reasons})"


def choose_encoder(
    folder: TokenizerFolder, sample: Sequence[str], backend: BackendRequest = "auto", *, with_bytes: bool = False
) -> EncoderChoice:
    """Load a tokenizer backend that gives the ids of `tokenizers` on `sample` and on built-in hard cases.

    `auto` takes the first of gigatoken, fastokens and tokenizers. Most of the time is spent on encoding the sample for
    comparison: 0.4 s for each MB.

    Args:
        with_bytes: also find the length of each token, for loss masks.

    Raises:
        UserError: the named backend cannot load this tokenizer, or gives other ids.
        ValueError: a text of the sample has a lone surrogate.
    """
    if backend == "tokenizers":
        reference = ask(folder, [], with_bytes)
        return EncoderChoice(ReferenceEncoder(folder.tokenizer), EncoderSpec(folder.path, backend), reference)
    answer = cache(call_in_background(ask, folder, sample, with_bytes))
    skipped: dict[str, str] = {}
    for name in FAST if backend == "auto" else (backend,):
        encoder = _load(EncoderSpec(folder.path, name))
        reference = answer()
        if isinstance(encoder, GigatokenEncoder):
            encoder.joiner = reference.joiner
        reason = encoder if isinstance(encoder, str) else _reason_against(encoder, reference)
        if isinstance(encoder, Encoder) and reason is None:
            spec = EncoderSpec(folder.path, name, reference.joiner if name == "gigatoken" else None)
            return EncoderChoice(encoder, spec, reference, len(reference.texts), skipped)
        skipped[name] = str(reason)
    if backend != "auto":
        raise UserError(f"tokenizer backend {backend}: {skipped[backend]}", "set the backend to auto")
    reference, spec = answer(), EncoderSpec(folder.path, "tokenizers")
    return EncoderChoice(ReferenceEncoder(folder.tokenizer), spec, reference, len(reference.texts), skipped)


def _load(spec: EncoderSpec) -> Encoder | str:
    """Load an encoder, or return why it cannot be loaded."""
    try:
        return spec.load()
    except BaseException as error:
        return f"cannot load it: {_first_line(error)}"


def _reason_against(encoder: Encoder, reference: Reference) -> str | None:
    try:
        return _difference(encoder, reference)
    except BaseException as error:
        return f"fails on a text: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    """First line of a library's error message.

    Any error is a reason not to use the library, even the panics of Rust code, which are not `Exception`; only
    exceptions that stop the whole program are raised again.
    """
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0]
