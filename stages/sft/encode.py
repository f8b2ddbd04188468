r"""The way of a conversation, from its row to tokens that are learnt, or to the reason why it is left out.

{"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}
->  messages, checked
->  "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n", [(54, 65)]
->  ids   11 12 13 21 22  2
    mask   0  0  0  1  1  1     written by the assistant
->  kept, cut at a limit, or refused with a reason
"""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nemotron_data.chat.confined import Overdue, Template, open_template
from nemotron_data.chat.formats import AUTO, PAIRS, ChatFormat, find_format, format_for, recognise
from nemotron_data.chat.guards import Rendered, guarded, holds_control, without_guard
from nemotron_data.chat.rows import (
    ChatFields,
    Message,
    calls_in_text,
    counts,
    is_used_in,
    remedy_of,
    tools_of,
    validate_messages,
)
from nemotron_data.chat.shown import REASONING, EndToken, Hidden, calls_untold, learnt_end, thought_of, with_thought
from nemotron_data.chat.spans import MUSED, OPENED_THOUGHT, common_start
from nemotron_data.chat.template import ADD_MARKS, Span, find_template, template_file
from nemotron_data.chat.thought import thinks
from nemotron_data.decontaminate import Decontamination
from nemotron_data.encoders import WorkerEncoder, masks_from_spans
from nemotron_data.encoders.masks import (
    CONTROL,
    HELD,
    NO_CONTROL,
    UNSPELLED,
    UNSPELLED_REMEDY,
    ControlTokens,
    encode_in_pieces,
    mask_by_offsets,
)
from nemotron_data.formats.json_lines import with_numbers_as_written
from nemotron_data.formats.packed import SequenceWriter
from nemotron_data.prep.reader import TOLERATE, ShardReader
from nemotron_data.rejects import Refused
from nemotron_data.sources.datasets import Part, split_key
from nemotron_data.sources.reading import Row
from nemotron_data.split import SPLITS, Split
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_shared.errors import UserError
from stages.sft.schema import SFTData

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class Tokens:
    """Encoded texts back to back: text i is `offsets[i] : offsets[i + 1]` of ids and mask."""

    ids: np.ndarray
    mask: np.ndarray
    offsets: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each text."""
        return np.diff(self.offsets)

    def all_masked(self) -> np.ndarray:
        """Of which texts every token was written by the assistant."""
        return (self._sums[self.offsets[1:]] - self._sums[self.offsets[:-1]] == self.lengths) & (self.lengths > 0)

    def learnt(self, keep: np.ndarray) -> np.ndarray:
        """How many of the first `keep` tokens of each text are learnt; the very first is predicted from nothing."""
        start = self.offsets[:-1]
        second = np.minimum(start + 1, start + keep)
        return self._sums[start + keep] - self._sums[second]

    @cached_property
    def _sums(self) -> np.ndarray:
        """Masked tokens before each place."""
        return np.concatenate([[0], np.cumsum(self.mask, dtype=np.int64)])

    def heads(self, keep: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids and mask of the first `keep` tokens of the texts `kept`."""
        if np.array_equal(keep, self.lengths):
            return self.ids, self.mask
        low = self.offsets[kept]
        pairs = list(zip(low.tolist(), (low + keep[kept]).tolist(), strict=True))
        if not pairs:
            return self.ids[:0], self.mask[:0]
        ids = np.concatenate([self.ids[start:end] for start, end in pairs])
        return ids, np.concatenate([self.mask[start:end] for start, end in pairs])


Whole = tuple[str, list[Span]] | UserError


class Ready(NamedTuple):
    """A conversation as the template is given it; `guard` stands inside of the names of control tokens in it."""

    messages: list[Message]
    tools: Any
    guard: str | None


@dataclass(frozen=True)
class Rendering:
    """A chat template before it is compiled: what worker processes are given.

    Attributes:
        template: Jinja source. label: what messages call it.
        special_tokens: the names that it may use, such as {"bos_token": "<s>"}.
        control: tokens whose names in a message are text.
    """

    template: str
    label: str
    special_tokens: Mapping[str, str | None]
    control: ControlTokens = NO_CONTROL

    @classmethod
    def of(cls, tokenizer: TokenizerFolder, chat_template: str | None) -> "Rendering":
        """With the configured template, or the tokenizer's own.

        Raises:
            UserError: there is none.
        """
        if chat_template is None:
            template, label = tokenizer.chat_template(), f"the chat template of {tokenizer.path}"
        else:
            template, label = (
                find_template(chat_template),
                str(template_file(chat_template) or "data_prep.chat_template"),
            )
        return cls(template, label, tokenizer.special_texts(), ControlTokens.of(tokenizer.tokenizer))

    def renderer(self, settings: SFTData) -> "Renderer":
        """For the rows of one data set."""
        return Renderer(settings, open_template(self.template, self.label, **self.special_tokens), self.control)

    def learnt_end(self, tokenizer: TokenizerFolder) -> EndToken | None:
        """The token that closes answers; see `nemotron_data.chat.shown`."""
        return learnt_end(self.template, self.label, tokenizer)

    def sample(self, row: Row, part: Part[SFTData]) -> list[str]:
        """The texts of a row, to try tokenizer libraries on."""
        renderer = self.renderer(part.settings)
        try:
            ready = renderer.ready(row, renderer.messages_of(row))
            return [rendered.text for rendered in renderer.texts_of(ready)]
        except UserError:
            return []  # the worker that meets this row says what is wrong with it


@dataclass
class Conversations:
    """Rows to messages."""

    settings: SFTData

    @cached_property
    def format_name(self) -> str:
        """The format that the settings mean; `auto` where each row shows its own."""
        return format_of_settings(self.settings)

    @cached_property
    def format(self) -> ChatFormat:
        """How rows hold their conversation."""
        return find_format(self.format_name)

    @cached_property
    def fields(self) -> ChatFields:
        """Where rows keep their conversation."""
        return fields_of(self.settings)

    def messages_of(self, row: Row) -> list[Message]:
        """The conversation of a row.

        Raises:
            UserError: a field is missing, or the conversation makes no sense.
        """
        messages = self.format.to_messages(self._with_digits(row), self.fields)
        if reason := validate_messages(messages):
            raise UserError(reason, remedy_of(reason) or TOLERATE)
        return messages

    def tools_of(self, row: Row) -> Any:
        """A row's descriptions of tools.

        Raises:
            UserError: they are none.
        """
        return tools_of(row.value, self.settings.tools_field)

    def _with_digits(self, row: Row) -> dict[str, Any]:
        """What was read of a row; of a pair, which may hold numbers, with those as the file has them."""
        if row.written is None or not any(isinstance(value, float) for value in row.value.values()):
            return row.value
        name = recognise(row.value).format if self.format_name == AUTO else self.format_name
        return with_numbers_as_written(row.value, row.written) if name in PAIRS else row.value

    def require_usable(self, row: Row, only: str | None) -> None:
        """What `ChatWork` does with a row before the chat template.

        Args:
            only: the split that all rows of the data set belong to.

        Raises:
            UserError: no conversation, or its tools are none. Refused: it lacks the field that decides its split.
        """
        settings = self.settings
        wanted = settings.used_in_filter
        if wanted is not None and not is_used_in(row.value, settings.used_in_field, wanted):
            return
        messages = self.messages_of(row)
        self.tools_of(row)
        if (only or Split(settings.split.model_dump(), salt="questions").only) is None:
            split_key(row.value, settings, first_question(messages))


@dataclass
class Renderer(Conversations):
    """Rows to texts, with the characters that the assistant wrote."""

    template: Template
    control: ControlTokens = NO_CONTROL

    def ready(self, row: Row, messages: list[Message], held: bool | None = None) -> "Ready":
        """What the template is given of a row.

        Args:
            held: what `holds_control` says of it, where that is known.

        Raises:
            UserError: the tokenizer cannot tell words from control tokens.
        """
        tools = self.tools_of(row)
        held = self.holds_control(row, messages) if held is None else held
        if not held or self.settings.control_tokens == "allow":
            return Ready(messages, tools, None)
        if not self.control.spelled:
            raise UserError(UNSPELLED, UNSPELLED_REMEDY)
        return Ready(*guarded(self.control, messages, tools))

    def texts_of(self, ready: "Ready", whole: "Whole | None" = None) -> list[Rendered]:
        """The conversation as one text, or as one for each question.

        Args:
            whole: what the template makes of all of it, where that is known.

        Raises:
            UserError: the template does not fit this conversation, or the tokenizer what it says.
        """
        found = self._rendered(ready.messages, ready.tools, whole)
        guard = ready.guard
        texts = [Rendered(*one) if guard is None else without_guard(*one, guard) for one in found]
        try:
            for text in (rendered.text for rendered in texts if not rendered.text.isascii()):
                text.encode()  # JSON inside of JSON may hold halves of characters, which no tokenizer takes
        except UnicodeEncodeError as error:
            what = "a lone surrogate, which is no character, in a tool call's arguments"
            raise UserError(what, TOLERATE) from error
        return texts

    def wholes_of(self, several: Sequence["Ready"]) -> "list[Whole]":
        """What the template makes of whole conversations: many are rendered at once, at less cost."""
        return self.template.render_all([(ready.messages, ready.tools) for ready in several])

    def holds_control(self, row: Row, messages: list[Message]) -> bool:
        """Whether a name of a control token stands in what somebody says."""
        return holds_control(self.control, messages, self.tools_of(row))

    def _rendered(
        self, messages: list[Message], tools: Any, whole: "Whole | None" = None
    ) -> list[tuple[str, list[Span]]]:
        """Many templates show only the reasoning of the last question's answers, as a model sees it. Where the earlier
        reasoning would be lost so, each question with all before it becomes a text in which only its own answers count.
        """
        if isinstance(whole, UserError):
            raise whole
        texts = [whole or self.template.render_with_spans(messages, tools)]
        if self.settings.split_turns != "never" and self._gains_by_splitting(messages, tools):
            texts = []
            questions = [i for i, message in enumerate(messages) if message["role"] == "user"]
            for question, end in pairwise([*questions, len(messages)]):
                if not any(message["role"] == "assistant" and counts(message) for message in messages[question:end]):
                    continue
                text, spans = self.template.render_with_spans(messages[:end], tools)
                # the first text has no earlier answers that count but those before any question
                asked = self._asked(messages, question, tools, text) if texts else 0
                # what is asked may end with a prompt that the answer's span begins with, such as <think>
                texts.append((text, [span for span in spans if span[1] > asked]))
        return texts

    def _asked(self, messages: list[Message], question: int, tools: Any, text: str) -> int:
        """How many characters of a text are of what leads to a question's answers."""
        asked = self.template.render(messages[: question + 1], tools)
        if not text.startswith(asked):
            # perhaps it ends with what some templates put at the end of every conversation
            asked = common_start(asked, self.template.render(messages[: question + 1], tools, True))
        if not text.startswith(asked):
            asked = OPENED_THOUGHT.sub("", asked)  # all prompt with one, and this answer has none
        if not text.startswith(asked):
            what = f"the chat template rewrites earlier text: turn {question} cannot be located"
            raise UserError(what, "set data_prep.split_turns=never")
        return len(asked)

    def _gains_by_splitting(self, messages: list[Message], tools: Any) -> bool:
        """Whether the text lacks earlier reasoning that a conversation which ends with its question's answers has."""
        questions = [i for i, message in enumerate(messages) if message["role"] == "user"]
        ends = {i: next((end for end in questions if end > i), None) for i in thinking(messages)}
        if not any(ends.values()):
            return False
        worded = with_thoughts(messages)
        text = self.template.render(worded, tools)
        lost = {i: end for i, end in ends.items() if end is not None and thought_word(i) not in text}
        return any(thought_word(i) in self.template.render(worded[:end], tools) for i, end in lost.items())

    def hides(self, row: Row, messages: list[Message]) -> tuple[str, ...]:
        """What a conversation says and the template does not show; see `shown`."""
        return self._hidden.of(messages, self.tools_of(row))

    @cached_property
    def _hidden(self) -> Hidden:
        return Hidden(self.template)


def fields_of(settings: SFTData) -> ChatFields:
    """The fields that the settings name."""
    return ChatFields(**{name: getattr(settings, name) for name in ChatFields.__dataclass_fields__})


def format_of_settings(settings: SFTData) -> str:
    """The format that the settings mean; `auto` where each row shows its own."""
    return format_for(settings.format, fields_of(settings))


def thinking(messages: list[Message]) -> list[int]:
    """The answers with reasoning, in a field of its own or in the text."""
    return [i for i, message in enumerate(messages) if message["role"] == "assistant" and thought_of(message)]


def with_thoughts(messages: list[Message]) -> list[Message]:
    """A word in place of each answer's reasoning: a short thought may well stand in a text that lacks the reasoning."""
    thoughts = set(thinking(messages))
    return [with_thought(one, thought_word(i)) if i in thoughts else one for i, one in enumerate(messages)]


def thought_word(number: int) -> str:
    """What stands for the reasoning of an answer."""
    return f"{MUSED}{number}z"


def first_question(messages: list[Message]) -> str:
    """What decides a conversation's split: its first user turn, so that equal questions stay together."""
    asked = (str(message["content"]) for message in messages if message["role"] == "user")
    return next(asked, str(messages[0]["content"]))


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
