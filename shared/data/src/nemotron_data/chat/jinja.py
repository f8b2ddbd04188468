"""Jinja environment for chat templates: transformers' functions, {% generation %}, and fast look-ups.

    {%- generation %}{{ message.content + '<|im_end|>' }}{%- endgeneration %}

The output equals that of `apply_chat_template`, in fewer steps. Templates without such blocks get marks in their loops
instead; see `turns`.
"""

from collections.abc import Callable
from datetime import datetime
from types import MethodType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from nemotron_data.chat.arguments import Arguments, to_json
from nemotron_data.chat.turns import TurnMarks

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
