"""Limits on what a chat template may use: loops, and the lengths of texts, whoever wrote it.

    {{ 'a' * 10000000000 }}        {{ '%99999999999d' % 5 }}        {{ messages | tojson(indent=99999999) }}

A worker would go on for years, or take the machine's memory, and other jobs with it. Each of these is an error instead.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from types import BuiltinMethodType
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.runtime import Context
from jinja2.utils import pass_context
from jinja2.visitor import NodeTransformer

LONGEST = 1 << 26
"""Characters of a text, and entries of a list."""
WIDEST = 10_000
"""Characters that a text is filled up to, or indented by."""
LARGEST = 1 << 12
"""Bits of a number."""
MOST_STEPS = 10_000_000
"""Turns of loops."""
MACRO_STEPS = 50
"""What a call of a macro counts as."""

WIDTHS = frozenset({"batch", "center", "indent", "slice", "tojson", "ljust", "rjust", "zfill", "expandtabs", "to_bytes",
                    "lipsum"})  # fmt: skip
FORMATS = frozenset({"format", "format_map"})
WIDE = re.compile(r"[0-9]{5,}")
SIZED = (str, bytes, list, tuple)


class Exceeded(TemplateError):
    """A template takes more than any conversation needs."""


class Limits:
    """What a template has used since `begin`."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A template is going to be run."""
        self._left, self._room = MOST_STEPS, LONGEST

    def write(self, piece: Any) -> Any:
        """Count what is put out."""
        self._room -= len(piece) if isinstance(piece, str) else 0
        if self._room < 0:
            raise _too_long()
        return piece

    def step(self, count: int = 1) -> None:
        """Count turns of loops."""
        self._left -= count
        if self._left < 0:
            raise Exceeded(f"it takes more than {MOST_STEPS:,} turns of loops")

    def loop(self, values: Any) -> Any:
        """What a loop is going to run over."""
        if hasattr(values, "__len__"):
            self.step(len(values))
        elif isinstance(values, Iterator):
            return self._counted(values)
        return values

    def _counted(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self.step()
            yield value


def not_too_long(value: Any) -> Any:
    """The value, unless it is an overlong text or list."""
    if isinstance(value, SIZED) and len(value) > LONGEST:
        raise _too_long()
    return value


def _too_long() -> Exceeded:
    return Exceeded(f"it makes a text or list of more than {LONGEST:,} characters or entries")


def _too_wide() -> Exceeded:
    return Exceeded(f"it fills or indents a text to more than {WIDEST:,} characters")


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Before left * right, left ** right and left % right."""
    if operator == "%":
        if isinstance(left, str):
            check_format(left, right if isinstance(right, tuple) else (right,))
        return
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > LARGEST:
            raise Exceeded(f"it makes a number of more than {LARGEST:,} bits")
    for text, count in ((left, right), (right, left)):
        if isinstance(text, SIZED) and isinstance(count, int) and len(text) * count > LONGEST:
            raise _too_long()


def check_format(text: str, values: Iterable[Any]) -> None:
    """Before "%99d" % 5 and "{:99}".format(5); widths may be in the text, or be values where it says so."""
    nested = "*" in text or re.search(r"\{[^{}]*\{", text)
    if WIDE.search(text) or (nested and any(isinstance(value, int) and value > WIDEST for value in values)):
        raise _too_wide()


def check_call(name: str, subject: Any, arguments: Iterable[Any]) -> None:
    """Before a method of a text or a filter."""
    values = list(arguments)
    if name in WIDTHS and any(isinstance(value, int) and value > WIDEST for value in values):
        raise _too_wide()
    if name in FORMATS and isinstance(subject, str):
        check_format(subject, values)
    if name == "replace" and len(values) > 1:
        length = str(subject).count(str(values[0])) * len(str(values[1]))
        if len(str(subject)) + length > LONGEST:
            raise _too_long()
    if name == "translate" and values and isinstance(values[0], Mapping):
        longest = max((len(new) for new in values[0].values() if isinstance(new, str)), default=1)
        if len(subject) * longest > LONGEST:
            raise _too_long()
    if name == "join":
        _check_join(subject, values)


def _check_join(subject: Any, values: list[Any]) -> None:
    """Of texts, as ", ".join(list) and as list | join(", ")."""
    parts, between = (values[0] if values else (), subject) if isinstance(subject, str) else (subject, "".join(
        value for value in values[:1] if isinstance(value, str)))  # fmt: skip
    if isinstance(parts, list | tuple) and sum(len(str(part)) + len(between) for part in parts) > LONGEST:
        raise _too_long()


def check_method(method: Any, arguments: Iterable[Any]) -> None:
    """Before a call of a function that a template got hold of."""
    method = getattr(method, "__wrapped__", method)  # Jinja's own stand-in for str.format
    if isinstance(method, BuiltinMethodType):
        check_call(method.__name__, method.__self__, arguments)


def limited_filters(filters: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Those filters that make long texts out of short ones, with limits."""
    names = [*(WIDTHS & filters.keys()), "format", "replace", "join"]
    return {name: _limited(name, filters[name]) for name in names}


def _limited(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    takes_more = hasattr(function, "jinja_pass_arg")  # the environment or the context, before the value

    @wraps(function)
    def limited(*args: Any, **named: Any) -> Any:
        subject, *values = args[1:] if takes_more else args
        check_call(name, subject, [*values, *named.values()])
        return function(*args, **named)

    return limited


class AddLimits(NodeTransformer):
    """Puts limits into a template: before each loop, and behind what is kept under a name, as texts grow by that."""

    def __init__(self) -> None:
        self._collecting = 0  # blocks whose text is kept until they end

    def visit_For(self, loop: nodes.For) -> nodes.For:
        """{% for message in messages %}"""
        self.generic_visit(loop)
        loop.iter = _filtered(loop.iter, "_loop")
        return loop

    def visit_Assign(self, assign: nodes.Assign) -> nodes.Assign:
        """{% set text = text ~ text %}"""
        self.generic_visit(assign)
        assign.node = _kept(assign.node)
        return assign

    def visit_With(self, block: nodes.With) -> nodes.With:
        """{% with text = text ~ text %}"""
        self.generic_visit(block)
        block.values = [_kept(value) for value in block.values]
        return block

    def visit_Output(self, output: nodes.Output) -> nodes.Output:
        """{{ text }}"""
        self.generic_visit(output)
        if self._collecting:
            output.nodes = [
                node if isinstance(node, nodes.TemplateData) else _filtered(node, "_written") for node in output.nodes
            ]
        return output

    def _collect(self, block: nodes.Node) -> nodes.Node:
        self._collecting += 1
        self.generic_visit(block)
        self._collecting -= 1
        return block

    visit_Macro = visit_AssignBlock = visit_CallBlock = visit_FilterBlock = _collect


def _kept(value: nodes.Node) -> nodes.Expr:
    assert isinstance(value, nodes.Expr)
    if isinstance(value, nodes.Tuple):
        value.items = [_kept(item) for item in value.items]
        return value
    grows = isinstance(value, nodes.Concat | nodes.BinExpr | nodes.Filter | nodes.Call | nodes.CondExpr)
    return _filtered(value, "_not_too_long") if grows else value


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def own_filters(limits: Limits) -> dict[str, Callable[..., Any]]:
    """What `AddLimits` puts in. With the context, they are not run while a template is compiled."""

    @pass_context
    def loop(_context: Context, values: Any) -> Any:
        return limits.loop(values)

    @pass_context
    def short(_context: Context, value: Any) -> Any:
        return not_too_long(value)

    @pass_context
    def written(_context: Context, value: Any) -> Any:
        return limits.write(value)

    return {"_loop": loop, "_not_too_long": short, "_written": written}
