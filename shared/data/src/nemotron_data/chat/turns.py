r"""Attribute the output of chat templates without {% generation %} to messages, by watching their loops.

    {%- for message in messages %}                      each turn of a loop is about one message,
        {{- '<|im_start|>' + message.role + '\n' }}     so its output belongs to that message,
        {{- message.content + '<|im_end|>\n' }}         independent of the text
    {%- endfor %}

Marks are compiled into such loops. They print nothing, and record which message the text after them belongs to.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.visitor import NodeTransformer

Span = tuple[int, int]

# Put around the number of a mark whose position is not known; reserved noncharacters, never part of a text.
OPEN, CLOSE = "\ufdd2", "\ufdd3"
NUMBERED = re.compile(f"{OPEN}([0-9]+){CLOSE}")

PRINTING: tuple[type[nodes.Node], ...] = (nodes.Output, nodes.CallBlock)


class Mark(str):
    """An empty piece of output. It keeps this type only if it goes straight into the whole text."""

    __slots__ = ()

    def __str__(self) -> Self:
        return self  # Jinja calls str() on everything it prints


class TurnMarks(Extension):
    """Marks recorded while a template runs.

    `owners` has, for each mark, the message that the text after it belongs to.
    """

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.owners: list[int | None] = []
        self._numbers: dict[int, int] = {}
        self._answers: set[int] = set()
        self._within: list[tuple[int, int]] = []
        self.visible = False
        """Print the numbers of the marks into the text?"""

    def add_to(self, tree: nodes.Template) -> None:
        """Add marks to all loops of a template."""
        _MarkLoops(self).visit(tree)
        tree.set_environment(self.environment)

    def watch(self, messages: Sequence[dict[str, Any]]) -> None:
        """Start tracking these messages, which must be distinct objects."""
        self.owners, self._within = [], []
        self._numbers = {id(message): number for number, message in enumerate(messages)}
        self._answers = {number for number, message in enumerate(messages) if message.get("role") == "assistant"}

    def entered(self, loop: int, value: object) -> str:
        """Record that the next turn of a loop is about `value`."""
        number = self._numbers.get(id(value))
        if number is None:
            return ""  # a tool, a call, a number
        self._leave(loop)
        self._within.append((loop, number))
        return self._mark()

    def left(self, loop: int) -> str:
        """Record the end of a loop; the text after it belongs to the message of the enclosing loop again."""
        return self._mark() if self._leave(loop) else ""

    def _leave(self, loop: int) -> bool:
        at = next((at for at, (known, _) in enumerate(self._within) if known == loop), None)
        if at is not None:
            del self._within[at:]
        return at is not None

    def _mark(self) -> str:
        # In nested loops, text counts as an answer's only if it is about answers in both: a tool's reply may be printed
        # in the turn of its call, and a call looked up in the turn of its reply.
        within = [number for _, number in self._within]
        others = [number for number in within if number not in self._answers]
        self.owners.append(next(iter([*others[-1:], *within[-1:]]), None))
        return f"{OPEN}{len(self.owners) - 1}{CLOSE}" if self.visible else Mark()


class _MarkLoops(NodeTransformer):
    """Insert a call of `entered` at the beginning of each loop, and one of `left` after it."""

    def __init__(self, marks: TurnMarks) -> None:
        self._marks = marks
        self._loops: list[tuple[int, str]] = []
        self._count = 0

    def visit_For(self, loop: nodes.For) -> list[nodes.Node]:
        """{% for message in messages %}"""
        if not isinstance(loop.target, nodes.Name) or not any(map(loop.find, PRINTING)):
            self.generic_visit(loop)  # a loop that prints nothing, only searches
            return [loop]
        self._count += 1
        number = self._count
        self._loops.append((number, loop.target.name))
        self.generic_visit(loop)
        self._loops.pop()
        loop.body.insert(0, self._call("entered", number, loop))
        return [loop, self._call("left", number, loop)]

    def visit_Assign(self, assign: nodes.Assign) -> list[nodes.Node]:
        """{% set message = messages[i] %} in a loop that counts i."""
        got, target = assign.node, assign.target
        if isinstance(target, nodes.Name) and isinstance(got, nodes.Getitem) and isinstance(got.arg, nodes.Name):
            for number, counter in reversed(self._loops):
                if counter == got.arg.name:
                    return [assign, self._call("entered", number, assign)]
        return [assign]

    def _call(self, method: str, loop: int, about: nodes.For | nodes.Assign) -> nodes.Node:
        arguments: list[nodes.Expr] = [nodes.Const(loop)]
        if method == "entered":
            assert isinstance(about.target, nodes.Name)
            arguments.append(nodes.Name(about.target.name, "load"))
        return nodes.Output([self._marks.call_method(method, arguments)]).set_lineno(about.lineno)


@dataclass(frozen=True, slots=True)
class Trace:
    """A rendered conversation, and which parts of it the loops printed for each message.

    Attributes:
        parts: by message; several if a loop over other messages runs inside its turn, none if nothing was printed.
        end: end of the last part; the text after it belongs to the conversation as a whole.
    """

    text: str
    parts: list[list[Span]] = field(default_factory=list)
    end: int = 0

    def of(self, message: int) -> str:
        """Text of one message."""
        return "".join(self.text[start:end] for start, end in self.parts[message])


def trace_of(pieces: Sequence[str], owners: Sequence[int | None], messages: Sequence[dict[str, Any]]) -> Trace:
    """Parts of each message from the pieces between marks; piece k + 1 follows mark k."""
    parts: list[list[Span]] = [[] for _ in messages]
    position = last = 0
    for owner, piece in zip([None, *owners], pieces, strict=True):
        end = position + len(piece)
        if owner is not None and piece:
            if parts[owner] and parts[owner][-1][1] == position:
                parts[owner][-1] = (parts[owner][-1][0], end)
            else:
                parts[owner].append((position, end))
            last = end
        position = end
    if last < position and messages and not parts[-1] and messages[-1].get("role") == "assistant":
        parts[-1], last = [(last, position)], position  # some loops end before the last answer
    return Trace("".join(pieces), parts, last)


def split_at_marks(pieces: Sequence[str]) -> list[str]:
    """Split text at marks that went straight into it."""
    found: list[list[str]] = [[]]
    for piece in pieces:
        if type(piece) is Mark:
            found.append([])
        else:
            found[-1].append(piece)
    return ["".join(texts) for texts in found]


def split_at_numbers(marked: str, marks: int) -> list[str] | None:
    """Split text at visible marks; None unless each of them is there, in order."""
    pieces = NUMBERED.split(marked)
    return pieces[::2] if pieces[1::2] == [str(number) for number in range(marks)] else None
