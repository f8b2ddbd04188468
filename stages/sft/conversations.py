r"""What a worker does with the conversations of a shard: render, tokenise and mask them.

{"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}
->  ids   11 12 13 21 22  2
    mask   0  0  0  1  1  1     written by the assistant
"""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nemotron_data.chat.confined import Overdue
from nemotron_data.chat.formats import AUTO
from nemotron_data.chat.guards import Rendered
from nemotron_data.chat.masks import mask_by_offsets
from nemotron_data.chat.recognition import recognise
from nemotron_data.chat.rows import Message, is_used_in
from nemotron_data.chat.shown import REASONING, calls_untold
from nemotron_data.chat.sound import calls_in_text
from nemotron_data.chat.template import ADD_MARKS
from nemotron_data.chat.thought import thinks
from nemotron_data.decontaminate import Decontamination
from nemotron_data.encoders import WorkerEncoder, masks_from_spans
from nemotron_data.encoders.control import CONTROL, HELD, encode_in_pieces
from nemotron_data.prep.reader import TOLERATE, ShardReader
from nemotron_data.rejects import Refused
from nemotron_data.sequences import SequenceWriter
from nemotron_data.sources.datasets import Part
from nemotron_data.sources.reading import Row
from nemotron_data.sources.rows import split_key
from nemotron_data.split import SPLITS, Split
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_shared.errors import UserError
from stages.sft.rendering import Ready, Rendering, Whole, first_question
from stages.sft.schema import SFTData
from stages.sft.tokens import Tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BATCH_CHARACTERS = 4 << 20
"""Text per tokenizer call: large enough that a call costs nothing, small enough to bound memory."""
ROWS_AT_ONCE = 64
"""Rows per call of the template, which may run in another process."""
NOT_USED = "filtered by used_in"
TOO_LONG = "longer than data_prep.pack_size"
NO_ANSWER_WITHIN = "no answer within data_prep.pack_size"
ANSWER_CUT = "answers cut at data_prep.pack_size"
CUT_AS_ASKED = "answers cut at data_prep.max_doc_tokens"
ROWS_OF = "rows of the format "
NOTHING_LEFT = "empty after masking"
TRUNCATED = "truncated"
HIDDEN = " that the chat template does not show"
"""Behind the names of what is hidden; reasoning alone is told and no loss, since many models are meant to have none."""
UNTOLD = "rows that call tools and describe none"
CALLS_IN_TEXT = "rows that call tools in their text"
WITH_THOUGHT, WITHOUT_THOUGHT = "answers learnt with a thought", "answers learnt without a thought"
BEFORE_ANSWER = 32
"""Characters that hold the end of a prompt."""


@dataclass
class ChatWork:
    """`Work` of the engine.

    Attributes:
        tokenizer: its folder, on a disk that all workers see.
        token_bytes: how many bytes each token stands for; None in tokenizers where that is not fixed.
    """

    parts: Sequence[Part[SFTData]]
    rendering: Rendering
    tokenizer: Path
    encoder: WorkerEncoder
    token_bytes: np.ndarray | None
    decontamination: Decontamination

    @cached_property
    def slow_tokenizer(self) -> "Tokenizer":
        """For texts whose tokens do not spell them; a worker loads it when it meets the first."""
        return TokenizerFolder(self.tokenizer).tokenizer

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "slow_tokenizer"}

    def run(self, reader: ShardReader, folder: Path) -> Mapping[str, Any]:
        """Write the sequences of a shard; gives the conversations by split, and the texts that fit in 2^n tokens."""
        part = self.parts[reader.shard.part]
        with SequenceWriter(folder) as writer:
            batch = Batch(self, part, reader, writer)
            for rows in in_groups(reader, ROWS_AT_ONCE):  # read
                batch.add(rows)  # render and split, and encode many at once
            batch.encode()
        return {"conversations": dict(batch.conversations), "fit": dict(batch.longest)}


class Waiting(NamedTuple):
    """A row whose texts wait to be encoded.

    Attributes:
        texts: how many of them are its.
        hidden: what of it they do not show.
    """

    row: Row
    split: str
    texts: int
    hidden: list[str]


@dataclass
class Batch:
    """Conversations that wait for the next tokenizer call."""

    work: ChatWork
    part: Part[SFTData]
    reader: ShardReader
    writer: SequenceWriter
    rows: "list[Waiting]" = field(default_factory=list)
    texts: list[Rendered] = field(default_factory=list)
    characters: int = 0
    conversations: Counter[str] = field(default_factory=Counter)
    longest: Counter[int] = field(default_factory=Counter)
    """Texts by the power of two that their tokens fit in."""

    def __post_init__(self) -> None:
        self._settings = self.part.settings
        self._renderer = self.work.rendering.renderer(self.part.settings)
        self._split = Split(self._settings.split.model_dump(), salt="questions")

    def add(self, rows: Sequence[Row]) -> None:
        """Render some rows; encode when there is enough text."""
        several = [(row, messages, ready) for row in rows for messages, ready in self._ready(row)]
        wholes = self._renderer.wholes_of([ready for *_, ready in several])
        for (row, messages, ready), whole in zip(several, wholes, strict=True):
            self._add(row, messages, ready, whole)
            if self.characters >= BATCH_CHARACTERS:
                self.encode()

    def _ready(self, row: Row) -> Iterator[tuple[list[Message], Ready]]:
        """The conversation of a row, if it is wanted and one."""
        settings = self._settings
        wanted = settings.used_in_filter
        if wanted is not None and not is_used_in(row.value, settings.used_in_field, wanted):
            self.reader.leave_out(row, NOT_USED, asked=True)
            return
        with self._refusing(row):
            messages = self._renderer.messages_of(row)
            held = self._renderer.holds_control(row, messages)
            self.reader.counts[HELD] += held
            if held and settings.control_tokens == "reject":
                self.reader.leave_out(row, CONTROL, asked=True)
                return
            yield messages, self._renderer.ready(row, messages, held)

    @contextmanager
    def _refusing(self, row: Row) -> Generator[None]:
        """Leave out a row with which something is wrong, or stop at it."""
        try:
            yield
        except Refused as refused:
            self.reader.refuse_for(row, refused)
        except UserError as error:
            reason, _, detail = error.message.partition(": ")
            refuse = self.reader.stop_at if isinstance(error, Overdue) else self.reader.refuse
            refuse(row, reason, detail, error.remedy or TOLERATE)

    def _add(self, row: Row, messages: list[Message], ready: Ready, whole: Whole) -> None:
        settings, rendered, split = self._settings, list[Rendered](), self.part.only or self._split.only
        with self._refusing(row):
            rendered = self._renderer.texts_of(ready, whole)
            if split is None:
                split = self._split.of(split_key(row.value, settings, first_question(messages)))
        if not rendered or split is None:
            return
        said = (one.text for one in rendered)
        if split != "test" and not self.work.decontamination.keeps(self.reader, row, said):
            return
        self._look_at(row, messages)
        if split == "train":
            self._look_at_answers(rendered)
        hidden = self._renderer.hides(row, messages)
        self.reader.counts[", ".join(hidden) + HIDDEN] += bool(hidden)
        self.rows.append(Waiting(row, split, len(rendered), [kind for kind in hidden if kind != REASONING]))
        if self._renderer.format_name == AUTO:
            self.reader.counts[f"{ROWS_OF}{recognise(row.value).format}"] += 1
        self.texts += rendered
        self.characters += sum(len(one.text) for one in rendered)

    def _look_at(self, row: Row, messages: list[Message]) -> None:
        """Count what people should know of conversations that are trained on as they are."""
        counts = self.reader.counts
        counts[UNTOLD] += calls_untold(messages, self._renderer.tools_of(row))
        counts[CALLS_IN_TEXT] += any(map(calls_in_text, messages))

    def _look_at_answers(self, rendered: Sequence[Rendered]) -> None:
        """Count the answers that are learnt with a thought and without one, of templates that tell them apart."""
        for text, spans, _ in rendered:
            for start, end in spans:
                found = thinks(
                    text[max(0, start - BEFORE_ANSWER) : start], text[start : min(end, start + BEFORE_ANSWER)]
                )
                if found is not None:
                    self.reader.counts[WITH_THOUGHT if found else WITHOUT_THOUGHT] += 1

    def encode(self) -> None:
        """Turn what waits into sequences and write those that teach something."""
        if self.texts:
            tokens = self._tokens()
            keep = self._decide(tokens)
            kept = np.flatnonzero(keep)
            splits = np.repeat([SPLITS.index(one.split) for one in self.rows], [one.texts for one in self.rows])
            ids, mask = tokens.heads(keep, kept)
            self.writer.add(ids, mask, keep[kept], splits[kept])
        self.rows, self.texts, self.characters = [], [], 0

    def _tokens(self) -> Tokens:
        work = self.work
        texts, spans, cuts = zip(*self.texts, strict=True)
        ids, offsets = encode_in_pieces(work.encoder.encode, texts, cuts)
        if work.token_bytes is None:
            mask, known = np.zeros(len(ids), np.uint8), np.zeros(len(texts), bool)
        else:
            mask, known = masks_from_spans(ids, offsets, texts, spans, work.token_bytes)
        for i in np.flatnonzero(~known).tolist():
            slow_ids, slow_mask = mask_by_offsets(work.slow_tokenizer, texts[i], spans[i], cuts[i])
            assert slow_ids == ids[offsets[i] : offsets[i + 1]].tolist(), "the encoder gives other ids than its check"
            mask[offsets[i] : offsets[i + 1]] = slow_mask
        return Tokens(ids, mask, offsets)

    def _decide(self, tokens: Tokens) -> np.ndarray:
        """How many tokens of each text to keep: all, up to a limit, or none."""
        settings, reader = self._settings, self.reader
        wanted = (
            tokens.lengths if settings.max_doc_tokens is None else np.minimum(tokens.lengths, settings.max_doc_tokens)
        )
        too_long = wanted > settings.pack_size
        keep = np.minimum(wanted, settings.pack_size)
        if settings.too_long == "reject":
            keep[too_long] = 0
        prompts_too = tokens.all_masked()
        learnt, whole = tokens.learnt(keep), tokens.learnt(wanted)
        keep[prompts_too | (learnt == 0)] = 0
        shorter = (learnt < whole) & (keep > 0)
        shorter_as_asked = (tokens.learnt(tokens.lengths) > whole) & (keep > 0)
        self.longest.update(int(length - 1).bit_length() for length in wanted.tolist())
        first = 0
        for row, split, count, hidden in self.rows:
            texts = slice(first, first + count)
            first += count
            if keep[texts].any():
                self.conversations[split] += 1
                if hidden:
                    reader.cut_off(row, ", ".join(hidden) + HIDDEN)
                elif shorter[texts].any() or (too_long[texts] & (keep[texts] == 0) & (whole[texts] > 0)).any():
                    reader.cut_off(row, ANSWER_CUT)
                elif shorter_as_asked[texts].any():
                    reader.cut_off(row, CUT_AS_ASKED, asked=True)
            elif prompts_too[texts].any():
                reader.refuse(row, "the loss mask counts every token, the prompt included", "", ADD_MARKS)
            elif settings.too_long == "reject" and too_long[texts].any():
                reader.leave_out(row, TOO_LONG)
            else:
                reader.leave_out(row, NO_ANSWER_WITHIN if whole[texts].any() else NOTHING_LEFT)
        reader.counts[TRUNCATED] += int(np.count_nonzero((keep > 0) & (keep < tokens.lengths)))
        return keep


def in_groups(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    """Some rows at a time. An error that ends them comes when those before it are done with."""
    group: list[Row] = []
    try:
        for row in rows:
            group.append(row)
            if len(group) == size:
                yield group
                group = []
    except UserError:
        yield group
        raise
    yield group
