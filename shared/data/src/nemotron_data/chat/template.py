r"""Render conversations with a model's chat template, and return which characters the assistant wrote.

    [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]

becomes, with a ChatML template whose assistant part is between {% generation %} and {% endgeneration %},

    <|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n
                                                             ~~~~~~~~~~~ the one span that is trained on

Templates get the same variables and functions as in transformers, so text and mask equal those of
`apply_chat_template`. Templates without such blocks get marks in their loops instead; see `spans`.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from types import MethodType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from nemotron_data.chat.loss_marks import counts
from nemotron_data.chat.rows import JOINT, REASONING_NAMES, Arguments, Message, Parts, parsed_call, to_json
from nemotron_data.chat.spans import (
    ADD_MARKS,
    ASKED,
    CALLED,
    CALLING,
    QUESTION,
    TOOL,
    AnswerFinder,
    Span,
    Trace,
    TurnMarks,
    split_at_marks,
    split_at_numbers,
    trace_of,
)
from nemotron_shared.models.folder import LARGEST_TEMPLATE
from nemotron_shared.system.atomic import require_size
from nemotron_shared.system.errors import UserError, did_you_mean

# Put around generated text whose position is not known yet. U+FDD0 and U+FDD1 are permanently reserved noncharacters.
OPEN, CLOSE = "\ufdd0generation\ufdd1", "\ufdd1generation\ufdd0"
DICT_NAMES = frozenset(dir(dict))
# Names that the sandbox always allows. `str.format` is not one of them: the sandbox replaces it with a safe version.
PLAIN_NAMES = {
    kind: frozenset(name for name in dir(kind) if not name.startswith("_")) - {"format", "format_map"}
    for kind in (str, LoopContext)
}


class Generated(str):
    """Output of one {% generation %} block. It keeps this type only if it goes straight into the text."""

    __slots__ = ()


class GenerationBlock(Extension):
    """{% generation %}, around text that the model writes."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 wants a plain set here)
    found = False
    """Does the template have such a block?"""
    marking = False
    """Put OPEN and CLOSE around the output of blocks?"""
    calls = 0
    """Number of blocks run."""

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse a block, up to endgeneration."""
        self.found = True
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_generated"), [], [], body).set_lineno(line)

    def _generated(self, caller: Callable[[], str]) -> str:
        self.calls += 1
        return f"{OPEN}{caller()}{CLOSE}" if self.marking else Generated(caller())


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as transformers configures it, but with dict keys looked up first, because messages are plain dicts.

    Jinja itself tries attributes first, and raises an exception internally for each key that a template reads. The
    results are the same: names that every dict has, such as `items`, use Jinja's own look-up.

    The sandbox denies access to code and files. Time and memory are limited by the process it runs in, see `confined`.
    """

    def __init__(self) -> None:
        extensions = [GenerationBlock, TurnMarks, loopcontrols]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        block, turns = self.extensions[GenerationBlock.identifier], self.extensions[TurnMarks.identifier]
        assert isinstance(block, GenerationBlock)
        assert isinstance(turns, TurnMarks)
        self.generation, self.turns = block, turns
        # plain JSON: jinja2's own filter escapes HTML, which a model should not learn
        self.filters["tojson"] = to_json
        functions: dict[str, Any] = {
            "raise_exception": _raise_exception,
            "strftime_now": lambda pattern: datetime.now().strftime(pattern),
        }
        self.globals.update(functions)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`message.role`."""
        if type(obj) is dict and attribute not in DICT_NAMES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if attribute in PLAIN_NAMES.get(type(obj), ()):
            return getattr(obj, attribute)
        if type(obj) is Arguments and attribute in PLAIN_NAMES[str] - DICT_NAMES and attribute not in obj:
            return getattr(obj.text, attribute)
        return super().getattr(obj, attribute)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """`macro(message)`; macros and our own marks skip the sandbox's checks."""
        ours = (__self.generation, __self.turns)
        if type(__obj) is Macro or (type(__obj) is MethodType and __obj.__self__ in ours):
            kwargs.pop("_block_vars", None)  # compiled templates pass these on to functions that take the context
            kwargs.pop("_loop_vars", None)
            return __obj(*args, **kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """`message["role"]`."""
        if type(obj) is dict and type(argument) is str:
            if argument in obj:
                return obj[argument]
            if argument not in DICT_NAMES:
                return self.undefined(obj=obj, name=argument)
        return super().getitem(obj, argument)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


SHIPPED = Path(__file__).parent / "templates"
# Exceptions that a template's code raises on conversations that it was not written for.
REFUSALS = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
LONGEST_SAID = 500
DEFAULT = "default"
"""Name of the template to use if none is named."""
RESHAPED = frozenset([*REASONING_NAMES, "tool_calls"])
NO_CONTENT: tuple[Message, ...] = ({}, {"content": None}, {"content": ""})
CALL = {name: value for name, value in CALLING.items() if name != "content"}
REPLY = {"role": "tool", "tool_call_id": CALLED[3], "name": CALLED[0], "content": ASKED}
ONLY_CALLS = [QUESTION, CALL], [QUESTION, CALL, REPLY]
"""Plain conversations whose answer is only a call."""
Conversation = tuple[Sequence[Message], Sequence[dict[str, Any]] | None]
"""Messages and tools."""


class ChatTemplate:
    """A compiled chat template, `source` being Jinja text as in chat_template.jinja.

    `special_tokens` are names that templates use: `bos_token="<s>", eos_token="<|im_end|>"`. To get the same text every
    day from a template that prints the date, pass `strftime_now=some_datetime.strftime`.
    """

    def __init__(self, source: str, **special_tokens: str | None) -> None:
        self.source = source
        environment = ChatEnvironment()
        try:
            tree = environment.parse(source)
            if not environment.generation.found:
                environment.turns.add_to(tree)
            self._template = environment.from_string(tree)
        except jinja2.TemplateSyntaxError as error:
            said = (error.message or "")[:LONGEST_SAID]
            raise UserError(f"chat template, line {error.lineno}: {said}", "correct the template") from error
        except (*REFUSALS, SyntaxError, MemoryError) as error:  # nested too deep for the parser, or for Python's own
            said = str(error)[:LONGEST_SAID]
            raise UserError(f"the chat template cannot be read: {said}", "correct the template") from error
        self._always: dict[str, Any] = {**self._template.globals, "documents": None}
        self._always |= {name: token for name, token in special_tokens.items() if token is not None}
        self._block, self._turns = environment.generation, environment.turns
        self.has_generation_marks: bool = self._block.found
        self._answers = AnswerFinder(self._trace, special_tokens.get("eos_token") or "")
        self._no_content: Message | None = None

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        **options: Any,
    ) -> str:
        """Render the conversation. `options`, such as enable_thinking=False, become template variables."""
        return "".join(self._pieces(messages, tools, add_generation_prompt, options))

    def _pieces(self, messages: Any, tools: Any, prompt: bool, options: dict[str, Any]) -> list[str]:
        """The text in the pieces that the template prints."""
        if tools is not None and not (isinstance(tools, list | tuple) and all(isinstance(t, dict) for t in tools)):
            raise UserError("tools is not a list of objects", "parse it first if it is JSON text")
        seen = [self._as_templates_expect(message) for message in messages]
        if not self.has_generation_marks:
            seen = [dict(message) for message in seen]  # marks identify messages by id, and one may appear twice
            self._turns.watch(seen)
        variables = {
            **self._always,
            "messages": seen,
            "tools": tools,
            "add_generation_prompt": prompt,
            **options,
        }
        try:
            context = self._template.new_context(variables, shared=True)  # shared: with the globals, not copied
            return list(self._template.root_render_func(context))
        except REFUSALS as error:
            raise UserError(f"the chat template refuses this conversation: {error}", "correct one of them") from error

    def _as_templates_expect(self, message: Message) -> Message:
        """Normalize a message: no null fields, reasoning under all names that templates use, and calls with
        `Arguments`.
        """
        if type(said := message.get("content")) is Parts and self.joint != JOINT:
            message = {**message, "content": self.joint.join(said.parts)}
        if RESHAPED.isdisjoint(message) and None not in message.values():
            return message
        given = {key: value for key, value in message.items() if value is not None}
        named = [given[name] for name in REASONING_NAMES if name in given]
        if named:
            said = next(filter(None, named), named[0])  # tables have empty text under unused names
            given |= {"reasoning_content": said, "thinking": given.get("thinking") or said}
        calls = given.get("tool_calls")
        if calls and isinstance(calls, list):
            given["tool_calls"] = [parsed_call(call) if isinstance(call, dict) else call for call in calls]
            if "content" not in given:
                given |= self._content_of_calls()
        return given

    @cached_property
    def joint(self) -> str:
        """What stands between two text parts of a message: what the template itself puts there, if it shows parts."""
        words = "Zfirstz", "Zsecondz"
        text = self._tried([{"role": "user", "content": [{"type": "text", "text": word} for word in words]}], None)
        if text is None or [text.count(word) for word in words] != [1, 1]:
            return JOINT
        before, _, _ = text.partition(words[1])
        between = before.partition(words[0])[2]
        # a template that does not look into parts prints their dictionaries
        return JOINT if words[0] not in before or "text" in between else between

    def _content_of_calls(self) -> Message:
        """Content of answers without text, only calls.

        Missing, as in transformers, if the template then shows the call; else null, for templates that test
        `content is none`; else an empty text.
        """
        if self._no_content is None:
            shown: list[tuple[bool, bool, Message]] = []
            for content in NO_CONTENT:
                self._no_content = content
                tried = (self._tried(messages, tools) for messages in ONLY_CALLS for tools in (None, [TOOL]))
                texts = [text for text in tried if text is not None]
                known = bool(texts) and not any("None" in text for text in texts)
                shown.append((known and all(CALLED[0] in text for text in texts), known, content))
            self._no_content = max(shown, key=lambda one: one[:2])[-1]  # the first of equals
        return self._no_content

    def _tried(self, messages: Sequence[Message], tools: Any) -> str | None:
        try:
            return self.render(messages, tools)
        except UserError:
            return None

    def render_with_spans(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None, **options: Any
    ) -> tuple[str, list[Span]]:
        """The text, and the [start, end) assistant spans, sorted and disjoint.

        Raises `UserError` if they cannot be determined, because training on the wrong text would go unnoticed.
        """
        if self.has_generation_marks:
            text, blocks = self.render_with_blocks(messages, tools, **options)
            spans = [(start, end) for start, end in _that_count(blocks, messages) if start < end]
        else:
            text, spans = self._answers.find(messages, tools, options)
        if not spans and all(map(counts, messages)):
            raise UserError("the chat template shows nothing that the assistant wrote", ADD_MARKS)
        if spans == [(0, len(text))]:
            raise UserError("the chat template counts the whole text as the assistant's", ADD_MARKS)
        return text, spans

    def render_all(self, conversations: Sequence[Conversation]) -> list[tuple[str, list[Span]] | UserError]:
        """Text and spans of each conversation, or the error that refuses it."""
        return [self._found(*one) for one in conversations]

    def _found(self, messages: Sequence[Message], tools: Any) -> tuple[str, list[Span]] | UserError:
        try:
            return self.render_with_spans(messages, tools)
        except UserError as error:
            return error

    def render_with_blocks(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None, **options: Any
    ) -> tuple[str, list[Span]]:
        """The text, and the spans of {% generation %} blocks, whether or not they count in our loss."""
        self._block.calls = 0
        pieces = self._pieces(messages, tools, False, options)
        text = "".join(pieces)
        if self._block.calls != sum(type(piece) is Generated for piece in pieces):
            # a macro, a filter or {% set %} captured generated text, so its position is not known yet
            return text, self._marked_spans(text, messages, tools, options)
        spans, position = [], 0
        for piece in pieces:
            end = position + len(piece)
            if type(piece) is Generated:
                spans.append((position, end))
            position = end
        return text, spans

    def _trace(self, messages: Sequence[Message], tools: Any, prompt: bool, options: dict[str, Any]) -> Trace:
        """Text of a template without generation marks, and which parts of it belong to which message."""
        pieces = split_at_marks(self._pieces(messages, tools, prompt, options))
        text, owners = "".join(pieces), self._turns.owners
        if len(pieces) != len(owners) + 1:  # a macro or {% set %} captured a loop: render again, with marks in the text
            self._turns.visible = True
            try:
                marked = self.render(messages, tools, prompt, **options)
            finally:
                self._turns.visible = False
            owners = self._turns.owners
            found = split_at_numbers(marked, len(owners))
            if found is None or "".join(found) != text:
                raise UserError("the turns of this conversation cannot be located", ADD_MARKS)
            pieces = found
        return trace_of(pieces, owners, messages)

    def _marked_spans(self, text: str, messages: Any, tools: Any, options: dict[str, Any]) -> list[Span]:
        """Render again with marks in the text, and check that it is otherwise the same."""
        self._block.marking = True
        try:
            marked = self.render(messages, tools, **options)
        finally:
            self._block.marking = False
        pieces = [piece.split(CLOSE) for piece in marked.split(OPEN)]
        if "".join(map("".join, pieces)) != text or any(len(piece) != 2 for piece in pieces[1:]) or len(pieces[0]) > 1:
            raise UserError("the generated part of this conversation cannot be located", ADD_MARKS)
        spans, position = [], len(pieces[0][0])
        for inside, outside in pieces[1:]:
            spans.append((position, position + len(inside)))
            position += len(inside) + len(outside)
        return spans


def _that_count(blocks: list[Span], messages: Sequence[Message]) -> list[Span]:
    """Spans of the answers that count in the loss. If some do not, there must be one block for each answer."""
    answers = [message for message in messages if message.get("role") == "assistant"]
    if all(map(counts, answers)):
        return blocks
    if len(blocks) != len(answers):
        what = (
            f"the chat template marks {len(blocks)} generated parts for {len(answers)} answers: which of them counts?"
        )
        remedy = "put one {% generation %} around each answer, or take 'weight', 'loss' and 'train' out of the turns"
        raise UserError(what, remedy)
    return [block for block, answer in zip(blocks, answers, strict=True) if counts(answer)]


def find_template(named: str) -> str:
    """Jinja source for a setting: the name of a shipped template, Jinja text itself, or the path of a file.

    Raises:
        UserError: template not found.
    """
    file = template_file(named)
    return named if file is None else template_text(file)


def template_text(file: Path) -> str:
    """Read a template file.

    Raises:
        UserError: not UTF-8, or far too long.
    """
    require_size(file, LARGEST_TEMPLATE, "give a chat template of usual length")
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not a text in UTF-8: {error}", "save the chat template in UTF-8") from error


def default_template(found: Any, where: object) -> str | None:
    """Template of a tokenizer; of several named ones, the one called `default`, as in transformers.

    Args:
        found: `chat_template` as in tokenizer_config.json, or as transformers read it.
        where: its source, for messages.

    Raises:
        UserError: several templates without a default, or not a template.
    """
    if isinstance(found, list) and all(isinstance(one, dict) and "name" in one for one in found):
        found = {str(one["name"]): one.get("template") for one in found}
    if isinstance(found, dict):
        if found and DEFAULT not in found:
            what = f"{where}: has the chat templates {', '.join(sorted(found))}, and none named {DEFAULT}"
            raise UserError(
                what, f"name the one to use {DEFAULT}, or put it into chat_template.jinja in the same folder"
            )
        found = found.get(DEFAULT)
    if not isinstance(found, str | None):
        what = f"{where}: chat_template is neither a text nor a list of names and templates"
        raise UserError(what, "correct the file, or put the template into chat_template.jinja in the same folder")
    return found or None


def template_file(named: str) -> Path | None:
    """File that such a setting refers to; None for Jinja text."""
    if "{{" in named or "{%" in named:
        return None
    shipped = {path.stem: path for path in sorted(SHIPPED.glob("*.jinja"))}
    path = shipped.get(named, Path(named))
    if not path.is_file():
        otherwise = f"give a name ({', '.join(shipped)}), a Jinja file, Jinja text, or null for the tokenizer's own"
        raise UserError(f"chat template '{named}': no such name or file", did_you_mean(named, shipped, otherwise))
    return path
