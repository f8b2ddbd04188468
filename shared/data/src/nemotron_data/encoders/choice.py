"""Choose the fastest tokenizer library that gives the right ids for this tokenizer and this data.

choice.backend   "fastokens"
choice.skipped   {"gigatoken": "cannot load it: Unsupported pre_tokenizer type: Sequence (no Split regex found)"}
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from nemotron_data.encoders.backends import GigatokenEncoder, ReferenceEncoder
from nemotron_data.encoders.base import Encoder
from nemotron_data.encoders.probe import difference
from nemotron_data.encoders.reference import Reference, ask, ask_in_background
from nemotron_data.encoders.spec import Backend, EncoderSpec, WorkerEncoder
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_shared.errors import UserError

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
    answer = cache(ask_in_background(folder, sample, with_bytes))
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
        return difference(encoder, reference.texts, reference.encoded)
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
