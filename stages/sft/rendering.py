"""Rows to texts: a conversation through the chat template, with the characters that the assistant wrote.

{"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}
->  "<|im_start|>user\\n2+2?<|im_end|>\\n<|im_start|>assistant\\n4<|im_end|>\\n", [(54, 65)]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from nemotron_data.chat.answers import common_start
from nemotron_data.chat.confined import Template, open_template
from nemotron_data.chat.ends import EndToken, learnt_end
from nemotron_data.chat.formats import AUTO, ChatFormat, find_format, format_for
from nemotron_data.chat.guards import Rendered, guarded, holds_control, without_guard
from nemotron_data.chat.plain import MUSED, OPENED_THOUGHT
from nemotron_data.chat.recognition import PAIRS, recognise
from nemotron_data.chat.rows import (
    ChatFields,
    Message,
    counts,
    is_used_in,
    tools_of,
)
from nemotron_data.chat.shown import Hidden, thought_of, with_thought
from nemotron_data.chat.sound import remedy_of, validate_messages
from nemotron_data.chat.template import Span, find_template, template_file
from nemotron_data.encoders.control import NO_CONTROL, UNSPELLED, UNSPELLED_REMEDY, ControlTokens
from nemotron_data.formats.written import with_numbers_as_written
from nemotron_data.prep.reader import TOLERATE
from nemotron_data.sources.datasets import Part
from nemotron_data.sources.reading import Row
from nemotron_data.sources.rows import split_key
from nemotron_data.split import Split
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_shared.errors import UserError
from stages.sft.schema import SFTData

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
        """The token that closes answers; see `nemotron_data.chat.ends`."""
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
