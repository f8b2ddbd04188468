"""Choose the fastest tokenizer library that gives the right ids for this tokenizer and this data.

choice.backend   "fastokens"
choice.skipped   {"gigatoken": "cannot load it: Unsupported pre_tokenizer type: Sequence (no Split regex found)"}
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

from nemotron_shared.data.encoders.backends import ReferenceEncoder
from nemotron_shared.data.encoders.base import Encoded, Encoder
from nemotron_shared.data.encoders.hard_cases import hard_cases
from nemotron_shared.data.encoders.joining import find_joiner
from nemotron_shared.data.encoders.probe import difference
from nemotron_shared.data.encoders.spec import Backend, EncoderSpec
from nemotron_shared.data.tokenizer_folder import TokenizerFolder
from nemotron_shared.errors import UserError

BackendRequest = Literal["auto", "gigatoken", "fastokens", "tokenizers"]
FAST: tuple[Backend, ...] = ("gigatoken", "fastokens")


@dataclass(frozen=True)
class EncoderChoice:
    """The backend in use, how many documents it was probed on, and why faster ones are not used."""

    encoder: Encoder
    spec: EncoderSpec
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

    def as_metadata(self) -> dict[str, Any]:
        """For the manifest; it is no part of a result, which is the same with every backend."""
        return {"backend": self.backend, "version": self.version, "probed": self.probed, "skipped": self.skipped}

    def announcement(self) -> str | None:
        """One line for the user where no fast library can be used; None if one is, or none was wanted."""
        if self.backend != "tokenizers" or not self.skipped:
            return None
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.skipped.items())
        return f"tokenizing about 50 times slower, with tokenizers ({reasons})"


def choose_encoder(folder: TokenizerFolder, sample: Sequence[str], backend: BackendRequest = "auto") -> EncoderChoice:
    """Load a tokenizer backend that gives the ids of `tokenizers` on `sample` and on built-in hard cases.

    `auto` takes the first of gigatoken, fastokens and tokenizers. Encoding the sample for comparison is what takes
    time: 0.4 s for each MB.

    Raises:
        UserError: the named backend cannot load this tokenizer, or gives other ids.
        ValueError: a text of the sample holds a lone surrogate.
    """
    reference = ReferenceEncoder(folder.tokenizer)
    if backend == "tokenizers":
        return EncoderChoice(reference, EncoderSpec(folder.path, "tokenizers"))
    texts = [*hard_cases(folder.tokenizer), *sample]
    # the reference works without Python's lock, so a fast backend loads meanwhile
    with ThreadPoolExecutor(1) as thread:
        expected = thread.submit(reference.encode, texts)
        choice = _first_exact(folder, texts, expected, FAST if backend == "auto" else (backend,))
    if isinstance(choice, EncoderChoice):
        return choice
    if backend != "auto":
        raise UserError(f"tokenizer backend {backend}: {choice[backend]}", "set the backend to auto")
    return EncoderChoice(reference, EncoderSpec(folder.path, "tokenizers"), len(texts), choice)


def _first_exact(
    folder: TokenizerFolder, texts: list[str], expected: Future[Encoded], backends: Sequence[Backend]
) -> EncoderChoice | dict[str, str]:
    """The first backend that passes, or why each does not."""
    skipped: dict[str, str] = {}
    for backend in backends:
        spec = EncoderSpec(folder.path, backend, find_joiner(folder.tokenizer) if backend == "gigatoken" else None)
        encoder = _load(spec)
        if isinstance(encoder, Encoder):
            reason = _reason_against(encoder, texts, expected.result())
            if reason is None:
                return EncoderChoice(encoder, spec, len(texts), skipped)
        else:
            reason = encoder
        skipped[backend] = reason
    return skipped


def _load(spec: EncoderSpec) -> Encoder | str:
    """The encoder, or why it cannot be loaded."""
    try:
        return spec.load()
    except BaseException as error:
        return f"cannot load it: {_first_line(error)}"


def _reason_against(encoder: Encoder, texts: list[str], expected: Encoded) -> str | None:
    try:
        return difference(encoder, texts, expected)
    except BaseException as error:
        return f"fails on a text: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    """What a library says of a failure. Whatever it raises is a reason not to use it, even the panics of Rust code,
    which are no `Exception`; only what stops the whole program goes on."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0]
