"""Compare sets, pairs and intervals: what is written decides what order and brackets mean.

\\{3,5\\}     a set: {5,3}, and 5,3 without brackets; not a pair, not an interval
(5,3)       a pair: 5,3 without brackets in this order, and x = 5, y = 3
(3,5)       a pair, or the interval 3 < x < 5
3,5         what the other side is: a set, or a pair in this order

math-verify keeps sets sorted, and takes one for a pair in that order.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Same = Callable[[Any, Any], bool]
IN_BRACES = re.compile(r"\$*\s*(?:[A-Za-z]\s*(?:=|\\in)\s*)?(?:\\left\s*)?\\?\{.*\}\s*\.?\s*\$*", re.DOTALL)


@dataclass(frozen=True)
class Listed:
    """Members in the order in which they are written, without brackets."""

    members: tuple[Any, ...]


@dataclass(frozen=True)
class Region:
    """A set of numbers that no brackets name: what fulfils inequalities."""

    numbers: Any


def as_written(formula: Any, text: str, either: bool) -> Any:
    """What math-verify made of a list without brackets has the order of its text.

    Args:
        either: whether "or" stands between its members, which have no order then.
    """
    import sympy

    without = isinstance(formula, sympy.FiniteSet) and "," in text and not IN_BRACES.fullmatch(text)
    if not without or either or any(isinstance(member, sympy.Eq) for member in formula.args):
        return formula
    return Listed(tuple(getattr(formula, "_unsorted_args", formula.args)))


def same_lists(one: Any, other: Any, same: Same) -> bool | None:
    """Whether two lists, sets or intervals are the same in some reading of both; None where one of them is neither.

    Args:
        same: compares members.
    """
    import sympy
    from sympy.core.relational import Relational

    for kinds in ((Relational, sympy.And, sympy.Or), sympy.Expr):
        if isinstance(one, kinds) and isinstance(other, kinds):
            return None
    readings, others = _readings(one), _readings(other)
    if not readings or not others:
        return None
    return any(COMPARED[kind](readings[kind], others[kind], same) for kind in readings if kind in others)


Kind = Literal["set", "tuple", "interval"]


def _readings(formula: Any) -> dict[Kind, Any]:
    """What a formula may be, and its members."""
    import sympy
    from sympy.core.relational import Relational

    if isinstance(formula, Listed):
        return {"set": formula.members, "tuple": formula.members}
    if isinstance(formula, Relational | sympy.And | sympy.Or):
        return _readings(_fulfilling(formula))
    if isinstance(formula, Region):
        return {kind: found for kind, found in _readings(formula.numbers).items() if kind != "tuple"}
    if isinstance(formula, sympy.FiniteSet):
        return {"set": formula.args}
    if isinstance(formula, sympy.Tuple):
        return {"tuple": formula.args}
    if isinstance(formula, sympy.Interval):
        pair: dict[Kind, Any] = {"tuple": (formula.start, formula.end)} if formula.is_open else {}
        return {"interval": formula, **pair}
    return {"set": (formula,)} if isinstance(formula, sympy.Expr) else {}  # {7} is 7


def members_in_order(formula: Any) -> tuple[Any, ...]:
    """The members of a pair or of a longer list in brackets; none of anything else."""
    return tuple(_readings(formula).get("tuple", ()))


def _fulfilling(formula: Any) -> Region | None:
    """The numbers that fulfil an inequality of one variable."""
    from nemotron_data.verifier.symbols import is_solvable

    if len(formula.free_symbols) != 1 or not is_solvable(formula):
        return None
    try:
        return Region(formula.as_set())
    except Exception:  # what sympy cannot solve, it reports in many ways
        return None


def _same_set(one: Sequence[Any], other: Sequence[Any], same: Same) -> bool:
    def within(some: Sequence[Any], others: Sequence[Any]) -> bool:
        return all(any(same(member, another) for another in others) for member in some)

    return within(one, other) and within(other, one)


def _same_tuple(one: Sequence[Any], other: Sequence[Any], same: Same) -> bool:
    return len(one) == len(other) and all(map(same, one, other))


def _same_interval(one: Any, other: Any, same: Same) -> bool:
    alike = one.left_open == other.left_open and one.right_open == other.right_open
    return bool(alike and same(one.start, other.start) and same(one.end, other.end))


COMPARED: dict[Kind, Callable[[Any, Any, Same], bool]] = {
    "set": _same_set, "tuple": _same_tuple, "interval": _same_interval,
}  # fmt: skip
