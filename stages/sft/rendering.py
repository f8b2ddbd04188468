"""Rows to texts: a conversation through the chat template, with the characters that the assistant wrote.

{"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}
->  "<|im_start|>user\\n2+2?<|im_end|>\\n<|im_start|>assistant\\n4<|im_end|>\\n", [(54, 65)]
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from nemotron_data.chat.answers import common_start
from nemotron_data.chat.formats import ChatFormat, find_format
from nemotron_data.chat.rows import ChatFields, Message, validate_messages
from nemotron_data.chat.template import ChatTemplate, Span, find_template
from nemotron_data.prep.reader import TOLERATE
from nemotron_data.sources.datasets import Part
from nemotron_data.sources.reading import Row
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_shared.errors import UserError
from stages.sft.schema import SFTData

Rendered = tuple[str, list[Span]]


SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token")


@dataclass(frozen=True)
class Rendering:
    """A chat template before it is compiled: what worker processes are given.

    Attributes:
        template: Jinja source. special_tokens: the names that it may use, such as {"bos_token": "<s>"}.
    """

    template: str
    special_tokens: Mapping[str, str | None]

    @classmethod
    def of(cls, tokenizer: TokenizerFolder, chat_template: str | None) -> "Rendering":
        """With the configured template, or the tokenizer's own.

        Raises:
            UserError: there is none.
        """
        template = tokenizer.chat_template() if chat_template is None else find_template(chat_template)
        return cls(template, {name: tokenizer.special_text(name) for name in SPECIAL_TOKENS})

    def renderer(self, settings: SFTData) -> "Renderer":
        """For the rows of one data set."""
        return Renderer(settings, ChatTemplate(self.template, **self.special_tokens))

    def sample(self, row: Row, part: Part[SFTData]) -> list[str]:
        """The texts of a row, to try tokenizer libraries on."""
        renderer = self.renderer(part.settings)
        try:
            return [text for text, _ in renderer.texts_of(row, renderer.messages_of(row))]
        except UserError:
            return []  # the worker that meets this row says what is wrong with it


@dataclass
class Renderer:
    """Rows to texts, with the characters that the assistant wrote."""

    settings: SFTData
    template: ChatTemplate

    @cached_property
    def format(self) -> ChatFormat:
        """How rows hold their conversation."""
        return find_format(self.settings.format)

    @cached_property
    def fields(self) -> ChatFields:
        """Where rows keep their conversation."""
        settings = self.settings
        return ChatFields(
            messages_field=settings.messages_field,
            prompt_field=settings.prompt_field,
            response_field=settings.response_field,
            conversations_field=settings.conversations_field,
        )

    def messages_of(self, row: Row) -> list[Message]:
        """The conversation of a row.

        Raises:
            UserError: a field is missing, or the conversation makes no sense.
        """
        messages = self.format.to_messages(row.value, self.fields)
        if reason := validate_messages(messages):
            raise UserError(reason, TOLERATE)
        return messages

    def texts_of(self, row: Row, messages: list[Message]) -> list[Rendered]:
        """The conversation as one text, or as one for each question.

        Many templates show only the reasoning of the last question's answers, as a model sees it. Where the earlier
        reasoning would be lost so, each question with all before it becomes a text in which only its own answers count.

        Raises:
            UserError: the template does not fit this conversation.
        """
        tools = row.value.get(self.settings.tools_field)
        texts = [self.template.render_with_spans(messages, tools)]
        if self.settings.split_turns != "never" and loses_reasoning(messages, texts[0][0]):
            texts = []
            questions = [i for i, message in enumerate(messages) if message["role"] == "user"]
            for question, end in pairwise([*questions, len(messages)]):
                if not any(message["role"] == "assistant" for message in messages[question:end]):
                    continue
                asked = self.template.render(messages[: question + 1], tools)
                text, spans = self.template.render_with_spans(messages[:end], tools)
                if not text.startswith(asked):
                    # perhaps it ends with what some templates put at the end of every conversation
                    asked = common_start(asked, self.template.render(messages[: question + 1], tools, True))
                if not text.startswith(asked):
                    what = f"the chat template rewrites earlier text: turn {question} cannot be located"
                    raise UserError(what, "set data_prep.split_turns=never")
                texts.append((text, [span for span in spans if span[0] >= len(asked)]))
        try:
            for text in (text for text, _ in texts if not text.isascii()):
                text.encode()  # JSON inside of JSON may hold halves of characters, which no tokenizer takes
        except UnicodeEncodeError as error:
            what = "a lone surrogate, which is no character, in a tool call's arguments"
            raise UserError(what, TOLERATE) from error
        return texts


def loses_reasoning(messages: list[Message], text: str) -> bool:
    """Whether a text lacks the reasoning of an answer to an earlier question than the last."""
    last = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=0)
    earlier = (message for message in messages[:last] if message["role"] == "assistant")
    thoughts = (message.get("reasoning_content") or message.get("thinking") or message.get("reasoning")
                for message in earlier)  # fmt: skip
    return any(thought and thought.strip() not in text for thought in thoughts)


def first_question(messages: list[Message]) -> str:
    """What decides a conversation's split: its first user turn, so that equal questions stay together."""
    asked = (str(message["content"]) for message in messages if message["role"] == "user")
    return next(asked, str(messages[0]["content"]))
