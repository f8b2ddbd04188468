r"""The way of a conversation, from its row to tokens that are learnt, or to the reason why it is left out.

{"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}
->  messages, checked
->  "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n", [(54, 65)]
->  ids   11 12 13 21 22  2
    mask   0  0  0  1  1  1     written by the assistant
->  kept, cut at a limit, or refused with a reason
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nemotron_data.chat.confined import Overdue, Template, open_template
from nemotron_data.chat.formats import AUTO, CHAT_FORMATS, find_format, format_for, recognise
from nemotron_data.chat.guards import Rendered, guarded, holds_control, without_guard
from nemotron_data.chat.loss_marks import NOT_LEARNT, counts, hidden_by, marked, marks_of_row
from nemotron_data.chat.rows import (
    ChatFields,
    Message,
    calls_in_text,
    is_used_in,
    remedy_of,
    tools_of,
    validate_messages,
)
from nemotron_data.chat.shown import NO_LOSS, EndToken, Hidden, calls_untold, learnt_end, thought_of, with_thought
from nemotron_data.chat.spans import (
    ANSWER,
    ASKED,
    MUSED,
    OPENED_THOUGHT,
    QUESTION,
    SAID,
    THOUGHT,
    TOOL,
    common_start,
)
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
from nemotron_data.formats.sequences import SequenceWriter
from nemotron_data.prep.reader import TOLERATE, ShardReader
from nemotron_data.rejects import Refused
from nemotron_data.sources.datasets import Part, split_key
from nemotron_data.sources.reading import Row
from nemotron_data.split import SPLITS, Split
from nemotron_data.tokenizers.embedded import rows_of, unembedded
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_shared.models.folder import config_of
from nemotron_shared.system.errors import UserError
from stages.sft.schema import SFTData

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
"""After the names of what is hidden. What is in `NO_LOSS` is only counted."""
UNTOLD = "rows that call tools and describe none"
CALLS_IN_TEXT = "rows that call tools in their text"
UNLIKE_LAST = "rows whose earlier answers the chat template formats unlike the last one"
WITH_THOUGHT, WITHOUT_THOUGHT = "answers learnt with a thought", "answers learnt without a thought"
SALT = "questions"
"""Of the split: with another one, other questions would be held out."""
BEFORE_ANSWER = 32
"""Characters that hold the end of a prompt."""


# Row to messages.


class Conversation(NamedTuple):
    """A row as the template gets it.

    Attributes:
        format: the row's format.
        guard: marks the names of control tokens in `messages` and `tools`; None if they have none, or allowed ones.
        unlearnt_by: the field of the row that says that its answers are not to be learnt.
    """

    format: str
    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    guard: str | None = None
    unlearnt_by: str | None = None

    @property
    def first_question(self) -> str:
        """The first user turn, which decides the split, so that equal questions stay together."""
        asked = (str(message["content"]) for message in self.messages if message["role"] == "user")
        return next(asked, str(self.messages[0]["content"]))


class Conversations:
    """Rows of one data set to messages, by its settings."""

    def __init__(self, settings: SFTData) -> None:
        self.settings = settings
        self.fields = ChatFields(**{name: getattr(settings, name) for name in ChatFields.__dataclass_fields__})
        self.format = format_for(settings.format, self.fields)
        self._known = None if self.format == AUTO else find_format(self.format)
        self._split = Split(settings.split.model_dump(), salt=SALT)
        named = (settings.tools_field, settings.key_field, settings.used_in_field)
        self._named = {*asdict(self.fields).values(), *filter(None, named)}

    def wants(self, row: Row) -> bool:
        """Whether the settings use this row."""
        wanted = self.settings.used_in_filter
        return wanted is None or is_used_in(row.value, self.settings.used_in_field, wanted)

    def read(self, row: Row) -> Conversation:
        """The conversation of a row.

        Raises:
            UserError: a field is missing, or the conversation cannot be trained on.
        """
        found = recognise(row.value, self.format, self.fields)
        known = self._known or find_format(found.format)
        # a format from outside the table has fields of its own
        marks = marks_of_row(row.value, self._named) if found.format in CHAT_FORMATS else {}
        value = row.value
        if known.is_pair and row.written is not None and any(isinstance(one, float) for one in value.values()):
            value = with_numbers_as_written(value, row.written)
        messages = known.to_messages(value, *found.fields)
        if marks and isinstance(messages, list):
            messages = marked(messages, marks)
        if reason := validate_messages(messages):
            raise UserError(reason, remedy_of(reason) or TOLERATE)
        tools = tools_of(row.value, self.settings.tools_field)
        return Conversation(found.format, messages, tools, unlearnt_by=hidden_by(marks))

    def split_of(self, row: Row, conversation: Conversation, only: str | None) -> str:
        """The split of a row.

        Args:
            only: the split of all rows of the data set, if its owner has split it.

        Raises:
            Refused: the row lacks the field that decides.
        """
        only = only or self._split.only
        return only or self._split.of(self.key_of(row, conversation))

    def key_of(self, row: Row, conversation: Conversation) -> str:
        """What decides the split of a row; raises `Refused` if it lacks the field."""
        return split_key(row.value, self.settings, conversation.first_question)

    def require_usable(self, row: Row, only: str | None) -> None:
        """Raise what `ChatWork` would raise for a row before the chat template."""
        if self.wants(row):
            self.split_of(row, self.read(row), only)


# Messages to text and spans.


@dataclass(frozen=True)
class Rendering:
    """A chat template before it is compiled, to send to workers.

    Attributes:
        template: Jinja source. label: its name in messages.
        special_tokens: the names that it may use, such as {"bos_token": "<s>"}.
        control: tokens whose names in a message are text.
    """

    template: str
    label: str
    special_tokens: Mapping[str, str | None]
    control: ControlTokens = NO_CONTROL

    @classmethod
    def of(cls, tokenizer: TokenizerFolder, chat_template: str | None) -> "Rendering":
        """The configured template, or the tokenizer's own; raises `UserError` without one."""
        if chat_template is None:
            template, label = tokenizer.chat_template(), f"the chat template of {tokenizer.path}"
        else:
            template = find_template(chat_template)
            label = str(template_file(chat_template) or "data_prep.chat_template")
        return cls(template, label, tokenizer.special_texts(), ControlTokens.of(tokenizer.tokenizer))

    def renderer(self, settings: SFTData) -> "Renderer":
        """For the rows of one data set."""
        return Renderer(settings, self._opened(), self.control)

    def _opened(self) -> Template:
        return open_template(self.template, self.label, **self.special_tokens)

    def learnt_end(self, tokenizer: TokenizerFolder) -> EndToken | None:
        """The token that closes answers; see `nemotron_data.chat.shown`."""
        return learnt_end(self.template, self.label, tokenizer)

    def require_embedded(self, tokenizer: TokenizerFolder, model: Path) -> None:
        """Refuse a template that writes tokens which the model has no embeddings for.

        Args:
            model: folder that the tokenizer comes from; one without a model tells nothing.

        Raises:
            UserError: names the token.
        """
        config = model / "config.json"
        rows = rows_of(config_of(model)) if config.is_file() else None
        if rows is not None and (wrong := unembedded(tokenizer, rows, self.template)):
            raise UserError(wrong.message.replace(str(tokenizer.path), str(model)), wrong.remedy)

    def sampler(self) -> Callable[[Row, Part[SFTData]], list[str]]:
        """Gives the texts of a row, to try tokenizer libraries on. The template is compiled once for all rows."""
        template = self._opened()

        def sample(row: Row, part: Part[SFTData]) -> list[str]:
            renderer = Renderer(part.settings, template, self.control)
            try:
                return [rendered.text for rendered in renderer.texts_of(renderer.guarded(renderer.read(row)))]
            except UserError:
                return []  # the worker that meets this row reports it

        return sample


class Renderer(Conversations):
    """Rows of one data set to texts, with the characters that the assistant wrote."""

    def __init__(self, settings: SFTData, template: Template, control: ControlTokens = NO_CONTROL) -> None:
        super().__init__(settings)
        self.template, self.control = template, control
        self.hidden = Hidden(template)
        self._marks_last: bool | None = None

    def holds_control(self, conversation: Conversation) -> bool:
        """Whether the name of a control token occurs in somebody's words."""
        return holds_control(self.control, conversation.messages, conversation.tools)

    def guarded(self, conversation: Conversation) -> Conversation:
        """Guard the names of control tokens, unless the settings allow them.

        Raises:
            UserError: the tokenizer cannot encode such a name as text.
        """
        if self.settings.control_tokens == "allow" or not self.holds_control(conversation):
            return conversation
        if not self.control.spelled:
            raise UserError(UNSPELLED, UNSPELLED_REMEDY)
        return Conversation(conversation.format, *guarded(self.control, conversation.messages, conversation.tools))

    def render_all(self, conversations: Sequence[Conversation]) -> list[tuple[str, list[Span]] | UserError]:
        """Text and spans of whole conversations; rendering many at once costs less."""
        return self.template.render_all([(one.messages, one.tools) for one in conversations])

    def texts_of(self, conversation: Conversation, whole: tuple[str, list[Span]] | None = None) -> list[Rendered]:
        """The conversation as one text, or as one for each question.

        Args:
            whole: text and spans of all of it, if known.

        Raises:
            UserError: the template does not fit this conversation, or renders what no tokenizer takes.
        """
        guard = conversation.guard
        found = self._rendered(conversation.messages, conversation.tools, whole)
        texts = [Rendered(*one) if guard is None else without_guard(*one, guard) for one in found]
        try:
            for text in (rendered.text for rendered in texts if not rendered.text.isascii()):
                text.encode()  # JSON inside of JSON may hold halves of characters, which no tokenizer takes
        except UnicodeEncodeError as error:
            what = "a lone surrogate, which is not a character, in a tool call's arguments"
            raise UserError(what, TOLERATE) from error
        return texts

    def _rendered(
        self, messages: list[Message], tools: Any, whole: tuple[str, list[Span]] | None
    ) -> list[tuple[str, list[Span]]]:
        """Many templates show only the reasoning of the last question's answers, as a model sees it. If that would lose
        earlier reasoning, or if the template formats earlier answers unlike those to a prompt, each question with
        everything before it becomes a text in which only its own answers count.
        """
        whole = whole or self.template.render_with_spans(messages, tools)
        if self.settings.split_turns == "never" or not (
            self.formats_earlier_unlike_last(messages) or self._gains_by_splitting(messages, tools)
        ):
            return [whole]
        texts: list[tuple[str, list[Span]]] = []
        questions = [i for i, message in enumerate(messages) if message["role"] == "user"]
        for question, end in pairwise([*questions, len(messages)]):
            if not any(message["role"] == "assistant" and counts(message) for message in messages[question:end]):
                continue
            text, spans = self.template.render_with_spans(messages[:end], tools)
            # the first text has no earlier answers that count but those before any question
            asked = self._asked(messages, question, tools, text) if texts else 0
            # the question may end with a prompt that the answer's span begins with, such as <think>
            texts.append((text, [span for span in spans if span[1] > asked]))
        return texts

    def _asked(self, messages: list[Message], question: int, tools: Any, text: str) -> int:
        """Number of characters of a text before the answers to a question."""
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

    def formats_earlier_unlike_last(self, messages: list[Message]) -> bool:
        """Whether the template writes an earlier answer without a thought in another form than it would as the last.

        Qwen3's template writes an empty thought before the last answer only, also before one that had none.
        """
        last = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=0)
        earlier = (message for message in messages[:last] if message["role"] == "assistant" and counts(message))
        return self._marks_only_the_last() and any(not thought_of(message) for message in earlier)

    def _marks_only_the_last(self) -> bool:
        """Whether the marks of a thought before a plain answer depend on what follows the answer; looked up once."""
        if self._marks_last is None:
            self._marks_last = False
            for tools in (None, [TOOL]):  # some templates require tools
                with suppress(UserError):
                    turn = [QUESTION, ANSWER]
                    texts = (self.template.render(messages, tools) for messages in (turn, [*turn, *turn]))
                    before = [text.partition(ASKED)[2].partition(SAID)[0] for text in texts]
                    self._marks_last = len({tuple(THOUGHT.findall(lead)) for lead in before}) > 1
                    break
        return self._marks_last

    def _gains_by_splitting(self, messages: list[Message], tools: Any) -> bool:
        """Whether the text lacks earlier reasoning that a conversation which ends with its question's answers has.

        A word stands for each answer's reasoning: a short thought may occur in a text that lacks the reasoning.
        """
        questions = [i for i, message in enumerate(messages) if message["role"] == "user"]
        words = {
            i: f"{MUSED}{i}z"
            for i, message in enumerate(messages)
            if message["role"] == "assistant" and thought_of(message)
        }
        ends = {i: next((end for end in questions if end > i), None) for i in words}
        if not any(ends.values()):
            return False
        worded = [with_thought(one, words[i]) if i in words else one for i, one in enumerate(messages)]
        text = self.template.render(worded, tools)
        lost = {i: end for i, end in ends.items() if end is not None and words[i] not in text}
        return any(words[i] in self.template.render(worded[:end], tools) for i, end in lost.items())


# Text and spans to ids and mask; keep, cut or refuse.


@dataclass(frozen=True)
class Tokens:
    """Encoded texts, concatenated: text i is `offsets[i] : offsets[i + 1]` of ids and mask."""

    ids: np.ndarray
    mask: np.ndarray
    offsets: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each text."""
        return np.diff(self.offsets)

    def all_masked(self) -> np.ndarray:
        """For each text, whether every token was written by the assistant."""
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


@dataclass
class ChatWork:
    """`Work` of the engine.

    Attributes:
        tokenizer: its folder, on a disk that all workers see.
        token_bytes: bytes of each token; None for tokenizers where that is not fixed.
    """

    parts: Sequence[Part[SFTData]]
    rendering: Rendering
    tokenizer: Path
    encoder: WorkerEncoder
    token_bytes: np.ndarray | None
    decontamination: Decontamination

    @cached_property
    def slow_tokenizer(self) -> "Tokenizer":
        """For texts whose tokens do not spell them; loaded when a worker meets the first."""
        return TokenizerFolder(self.tokenizer).tokenizer

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "slow_tokenizer"}

    def run(self, reader: ShardReader, folder: Path) -> Mapping[str, Any]:
        """Write the sequences of a shard; returns conversations by split, and texts by the 2^n tokens they fit in."""
        part = self.parts[reader.shard.part]
        with SequenceWriter(folder) as writer:
            batch = Batch(self, part, reader, writer)
            for rows in in_groups(reader, ROWS_AT_ONCE):
                batch.add(rows)
            batch.encode()
        return {"conversations": dict(batch.conversations), "fit": dict(batch.longest)}

    def encode(self, rendered: Sequence[Rendered]) -> Tokens:
        """Ids and mask of many texts at once."""
        texts, spans, cuts = zip(*rendered, strict=True)
        ids, offsets = encode_in_pieces(self.encoder.encode, texts, cuts)
        mask, known = masks_from_spans(ids, offsets, texts, spans, self.token_bytes)
        for i in np.flatnonzero(~known).tolist():
            slow_ids, slow_mask = mask_by_offsets(self.slow_tokenizer, texts[i], spans[i], cuts[i])
            assert slow_ids == ids[offsets[i] : offsets[i + 1]].tolist(), "the encoder gives other ids than its check"
            mask[offsets[i] : offsets[i + 1]] = slow_mask
        return Tokens(ids, mask, offsets)


class Waiting(NamedTuple):
    """A row whose texts wait to be encoded.

    Attributes:
        texts: how many they are.
        told: counts that it belongs to, if it is kept.
        hidden: what of the row they do not show.
    """

    row: Row
    split: str
    texts: int
    told: list[str]
    hidden: list[str]


@dataclass
class Batch:
    """Conversations that wait for the next tokenizer call."""

    work: ChatWork
    part: Part[SFTData]
    reader: ShardReader
    writer: SequenceWriter
    rows: list[Waiting] = field(default_factory=list)
    texts: list[Rendered] = field(default_factory=list)
    characters: int = 0
    conversations: Counter[str] = field(default_factory=Counter)
    longest: Counter[int] = field(default_factory=Counter)
    """Texts by the power of two that their tokens fit in."""

    def __post_init__(self) -> None:
        self._renderer = self.work.rendering.renderer(self.part.settings)

    def add(self, rows: Sequence[Row]) -> None:
        """Render some rows; encode when there is enough text."""
        read = [(row, *both) for row in rows if (both := self._read(row)) is not None]
        wholes = self._renderer.render_all([given for *_, given in read])
        for (row, conversation, given), whole in zip(read, wholes, strict=True):
            self._render(row, conversation, given, whole)
            if self.characters >= BATCH_CHARACTERS:
                self.encode()

    def _read(self, row: Row) -> tuple[Conversation, Conversation] | None:
        """The conversation of a row, and the same with guards; None if it is refused or not wanted."""
        if not self._renderer.wants(row):
            self.reader.leave_out(row, NOT_USED, asked=True)
            return None
        with self._refusing(row):
            conversation = self._renderer.read(row)
            if conversation.unlearnt_by is not None:
                self.reader.leave_out(row, NOT_LEARNT, f"'{conversation.unlearnt_by}' says so", asked=True)
                return None
            held = self._renderer.holds_control(conversation)
            self.reader.counts[HELD] += held
            if held and self.part.settings.control_tokens == "reject":
                self.reader.leave_out(row, CONTROL, asked=True)
                return None
            return conversation, self._renderer.guarded(conversation) if held else conversation
        return None

    @contextmanager
    def _refusing(self, row: Row) -> Generator[None]:
        """Leave out a row that has an error, or stop at it."""
        try:
            yield
        except Refused as refused:
            self.reader.refuse_for(row, refused)
        except UserError as error:
            reason, _, detail = error.message.partition(": ")
            refuse = self.reader.stop_at if isinstance(error, Overdue) else self.reader.refuse
            refuse(row, reason, detail, error.remedy or TOLERATE)

    def _render(
        self, row: Row, conversation: Conversation, given: Conversation, whole: tuple[str, list[Span]] | UserError
    ) -> None:
        rendered, split = list[Rendered](), ""
        with self._refusing(row):
            if isinstance(whole, UserError):
                raise whole
            rendered = self._renderer.texts_of(given, whole)
            split = self._renderer.split_of(row, conversation, self.part.only)
        if not split or not rendered:
            return
        said = (one.text for one in rendered)
        if split != "test" and not self.work.decontamination.keeps(self.reader, row, said):
            return
        hidden = self._renderer.hidden.of(conversation.messages, conversation.tools)
        told = self._told_of(conversation, hidden)
        self.rows.append(Waiting(row, split, len(rendered), told, [kind for kind in hidden if kind not in NO_LOSS]))
        self.texts += rendered
        self.characters += sum(len(one.text) for one in rendered)

    def _told_of(self, conversation: Conversation, hidden: Sequence[str]) -> list[str]:
        """The counts of what people should know of a conversation that is trained on as it is."""
        said = {
            UNTOLD: calls_untold(conversation.messages, conversation.tools),
            CALLS_IN_TEXT: any(map(calls_in_text, conversation.messages)),
            UNLIKE_LAST: self._renderer.formats_earlier_unlike_last(conversation.messages),
            ", ".join(hidden) + HIDDEN: bool(hidden),
            f"{ROWS_OF}{conversation.format}": self._renderer.format == AUTO,
        }
        return [name for name, true in said.items() if true]

    def _count_thoughts(self, rendered: Sequence[Rendered]) -> None:
        """Count answers with a thought and without one, if the template tells them apart."""
        for text, spans, _ in rendered:
            for start, end in spans:
                before = text[max(0, start - BEFORE_ANSWER) : start]
                found = thinks(before, text[start : min(end, start + BEFORE_ANSWER)])
                if found is not None:
                    self.reader.counts[WITH_THOUGHT if found else WITHOUT_THOUGHT] += 1

    def encode(self) -> None:
        """Turn what waits into sequences and write those that teach something."""
        if self.texts:
            tokens = self.work.encode(self.texts)
            keep = self._decide(tokens)
            kept = np.flatnonzero(keep)
            splits = np.repeat([SPLITS.index(one.split) for one in self.rows], [one.texts for one in self.rows])
            ids, mask = tokens.heads(keep, kept)
            self.writer.add(ids, mask, keep[kept], splits[kept])
        self.rows, self.texts, self.characters = [], [], 0

    def _decide(self, tokens: Tokens) -> np.ndarray:
        """How many tokens of each text to keep: all, up to a limit, or none."""
        settings, reader = self.part.settings, self.reader
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
        for row, split, count, told, hidden in self.rows:
            texts = slice(first, first + count)
            first += count
            if keep[texts].any():
                self.conversations[split] += 1
                reader.counts.update(told)
                if split == "train":
                    self._count_thoughts([self.texts[i] for i in range(texts.start, texts.stop) if keep[i]])
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
