"""What a worker does with the documents of a shard: tokenise them, and write those of each split back to back.

{"text": "Mira lives in Oster."}  ->  train.bin: 312 97 44 871 9 2    (2 is the end-of-text id)
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nemotron_data.decontaminate import Decontamination
from nemotron_data.encoders import Encoded, Reference, WorkerEncoder
from nemotron_data.encoders.masks import CONTROL, HELD, UNSPELLED, UNSPELLED_REMEDY, ControlTokens, encode_in_pieces
from nemotron_data.formats.bin_idx import IndexedDatasetWriter
from nemotron_data.formats.json_lines import spoken
from nemotron_data.prep.reader import ShardReader
from nemotron_data.rejects import Refused
from nemotron_data.sources.datasets import Part, field_of, filled, no_field, split_key
from nemotron_data.sources.reading import Row
from nemotron_data.split import Split
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_shared.config.data import TokenizerSection
from nemotron_shared.system.errors import UserError
from stages.pretrain.schema import PretrainData

BATCH_CHARACTERS = 1 << 20
"""Text per tokenizer call: large enough that a call costs nothing, small enough for the processor's caches."""
TOO_SHORT = "shorter than data_prep.min_doc_chars"
EMPTY = "empty text"
CUT = "longer than data_prep.max_doc_tokens"
TEXT_FIELD = "data_prep.text_field"
SALT = "questions"
"""Of the split by a key: with another one, other rows would be held out."""


@dataclass(frozen=True)
class Vocabulary:
    """How many ids there are, and those around each document."""

    size: int
    before: tuple[int, ...]
    after: tuple[int, ...]


def vocabulary_of(reference: Reference, settings: TokenizerSection) -> Vocabulary:
    """How many ids, and which stand around a document.

    Raises:
        UserError: the config wants a token at a document's beginning or end that the tokenizer does not have.
    """
    around = {"bos_token": settings.add_bos or False, "eos_token": settings.add_eos}
    for role, wanted in around.items():
        if wanted and role not in reference.ids:
            raise UserError(
                f"{settings.model}: the tokenizer has no {role}", f"set data_prep.tokenizer.add_{role[:3]}=false"
            )
    before, after = (tuple(reference.ids[role] for role in [name] if around[name]) for name in around)
    if settings.add_bos is None:
        before, _ = reference.added
    return Vocabulary(reference.vocab_size, before, after)


def about_post_processor(reference: Reference, around: Vocabulary, tokenizer: TokenizerFolder) -> str | None:
    """One line where the tokenizer's post-processor puts ids around texts, which Megatron-LM's tool then writes."""

    def names(ids: Sequence[int]) -> str:
        return " ".join(str(tokenizer.tokenizer.id_to_token(number)) for number in ids) or "nothing"

    before, after = reference.added
    if not before and not after:
        return None
    puts = f"the tokenizer's post-processor puts {names(before)} before a text and {names(after)} behind it"
    return f"{puts}; documents begin with {names(around.before)} and end with {names(around.after)}"


@dataclass(frozen=True)
class DocumentWork:
    """`Work` of the engine."""

    parts: Sequence[Part[PretrainData]]
    vocabulary: Vocabulary
    encoder: WorkerEncoder
    control: ControlTokens
    decontamination: Decontamination

    def run(self, reader: ShardReader, folder: Path) -> Mapping[str, Any]:
        """Write `<split>.bin` and `.idx`; gives {split: {"documents", "tokens"}}."""
        part = self.parts[reader.shard.part]
        split = Split(part.settings.split.model_dump(), salt=SALT)
        only = part.only or split.only
        with ExitStack() as stack:
            writers = Writers(folder, self, part, reader, stack)
            for row in reader:  # read
                text = usable_text(row, part.settings, reader)
                if text is None:
                    continue
                try:
                    chosen = only  # split: by the configured key, or by the exact text of the document
                    if chosen is None:
                        key = split_key(row.value, part.settings, "")
                        chosen = split.of(key) if key else split.of_document(text)
                except Refused as refused:
                    reader.refuse_for(row, refused)
                    continue
                if chosen == "test" or self.decontamination.keeps(reader, row, [text]):
                    writers.add(chosen, row, text)  # encode many at once, and write them back to back
            return writers.finish()


@dataclass
class Writers:
    """One file pair per split, each with the documents that wait for the next tokenizer call."""

    folder: Path
    work: DocumentWork
    part: Part[PretrainData]
    reader: ShardReader
    stack: ExitStack
    waiting: dict[str, list[tuple[Row, str]]] = field(default_factory=dict)
    characters: dict[str, int] = field(default_factory=dict)
    files: dict[str, IndexedDatasetWriter] = field(default_factory=dict)

    def add(self, split: str, row: Row, text: str) -> None:
        """Take one document, and encode those of its split when there are enough."""
        self.waiting.setdefault(split, []).append((row, text))
        self.characters[split] = self.characters.get(split, 0) + len(text)
        if self.characters[split] >= BATCH_CHARACTERS:
            self._encode(split)

    def finish(self) -> dict[str, dict[str, int]]:
        """Encode what is left and close the files."""
        for split in self.waiting:
            self._encode(split)
        self.stack.close()
        for split, file in self.files.items():
            if file.bin_sha256:
                self.reader.digests[f"{split}.bin"] = file.bin_sha256
        return {split: {"documents": file.documents, "tokens": file.tokens} for split, file in self.files.items()}

    def _encode(self, split: str) -> None:
        batch, self.waiting[split], self.characters[split] = self.waiting[split], [], 0
        batch, (ids, offsets) = self._encoded(batch)
        lengths = np.diff(offsets)
        most = self.part.settings.max_doc_tokens
        if most is not None and (lengths > most).any():
            for i in np.flatnonzero(lengths > most).tolist():
                self.reader.cut_off(batch[i][0], CUT, asked=True)
            lengths = np.minimum(lengths, most)
            pieces = zip(offsets[:-1], lengths, strict=True)
            ids = np.concatenate([ids[start : start + length] for start, length in pieces])
        # Megatron-LM's tool writes a document of no sequences for these, which no reader of sequences ever sees
        for i in np.flatnonzero(lengths == 0).tolist():
            self.reader.leave_out(batch[i][0], EMPTY, "the tokenizer makes no token of it")
        ids, lengths = with_boundaries(ids, lengths[lengths > 0], self.work.vocabulary)
        if not ids.size:
            return
        if split not in self.files:
            writer = IndexedDatasetWriter(self.folder / split, self.work.vocabulary.size)
            self.files[split] = self.stack.enter_context(writer)
        self.files[split].add_documents(ids, lengths)
        self.reader.counts["tokens"] += ids.size

    def _encoded(self, batch: list[tuple[Row, str]]) -> tuple[list[tuple[Row, str]], Encoded]:
        """The documents and their ids. Whether one names a control token shows in the ids: no text is searched."""
        texts = [text for _, text in batch]
        encoded = self.work.encoder.encode(texts)
        policy, control = self.part.settings.control_tokens, self.work.control
        held = set(control.documents_with(*encoded))
        self.reader.counts[HELD] += len(held)
        if not held or policy == "allow":
            return batch, encoded
        if policy == "reject" or not control.spelled:
            for number in sorted(held):
                if policy == "reject":
                    self.reader.leave_out(batch[number][0], CONTROL, asked=True)
                else:
                    self.reader.refuse(batch[number][0], UNSPELLED, "", UNSPELLED_REMEDY)
            batch = [one for number, one in enumerate(batch) if number not in held]
            return batch, self.work.encoder.encode([text for _, text in batch])
        cuts = [control.cuts(text) if number in held else [] for number, text in enumerate(texts)]
        return batch, encode_in_pieces(self.work.encoder.encode, texts, cuts)


def with_boundaries(ids: np.ndarray, lengths: np.ndarray, around: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """Put the ids that begin and end a document around each of those that lie back to back in `ids`."""
    before, after = len(around.before), len(around.after)
    if not before + after:
        return ids, lengths
    whole = lengths + (before + after)
    ends = np.cumsum(whole)
    framed = np.empty(int(whole.sum()), ids.dtype)
    for i, token in enumerate(around.before):
        framed[ends - whole + i] = token
    for i, token in enumerate(around.after):
        framed[ends - after + i] = token
    position = 0
    for start, length in zip((ends - whole + before).tolist(), lengths.tolist(), strict=True):
        framed[start : start + length] = ids[position : position + length]
        position += length
    return framed, whole


def usable_text(row: Row, settings: PretrainData, reader: ShardReader) -> str | None:
    """The text of a row; None if the row was refused or left out."""
    try:
        text = text_of(row, settings)
    except Refused as refused:
        reader.refuse_for(row, refused)
        return None
    if not text:
        reader.leave_out(row, EMPTY)
        return None
    if settings.min_doc_chars and len(text) < settings.min_doc_chars:
        reader.leave_out(row, TOO_SHORT, asked=True)
        return None
    return text


def require_usable(row: Row, part: Part[PretrainData]) -> None:
    """What `DocumentWork` does with a row before it encodes it.

    Raises:
        Refused: the row has no text, or lacks the field that decides its split.
    """
    settings = part.settings
    if text_of(row, settings) and (part.only or Split(settings.split.model_dump(), salt=SALT).only) is None:
        split_key(row.value, settings, "")


def text_of(row: Row, settings: PretrainData) -> str:
    """The text of a row.

    Raises:
        Refused: a field is missing, or is not text.
    """
    if settings.text_template is not None:
        return filled(settings.text_template, row.value)
    name = settings.text_field
    text = spoken(field_of(row.value, name))
    if type(text) is str:
        return text
    if text is None:
        raise no_field(row.value, name, TEXT_FIELD)
    what = f"'{name}' is of the type {type(text).__name__}"
    raise Refused("the text is not a string", what, f"name the field that holds it: {TEXT_FIELD}=NAME")
