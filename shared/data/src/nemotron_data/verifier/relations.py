"""What sympy made of two formulas, compared where math-verify forgets a part of them: equations, systems, constants.

It takes the right side for the whole of an equation, and rounds what is close to zero to zero.
"""

from collections.abc import Callable
from typing import Any

Same = Callable[[list[Any], list[Any]], bool]

CORRECT = 1e-12
"""How far two constants may be from each other, as a part of the expected one."""
LARGEST = 60  # operations; of a larger equation the sides are compared as they are written


def same_constant(gold: Any, answer: Any) -> bool | None:
    """Whether two numbers are the same, however small or complex; None where one of them is no number."""
    one, other = _constant(gold), _constant(answer)
    if one is None or other is None:
        return None
    return abs(one - other) <= CORRECT * abs(one)


def _constant(formula: Any) -> complex | None:
    import sympy

    if not isinstance(formula, sympy.Expr) or {symbol.name for symbol in formula.free_symbols} - {"i"}:
        return None
    if formula.atoms(sympy.core.function.AppliedUndef, sympy.Integral, sympy.Sum):
        return None
    value = formula.subs(dict.fromkeys(formula.free_symbols, sympy.I))
    try:
        found = complex(sympy.N(value, 30))
    except (TypeError, ValueError, OverflowError):
        return None
    return found if abs(found) < float("inf") and (found or value.is_zero or value == 0) else None


def same_equations(gold: Any, answer: Any, same: Same) -> bool | None:
    """Whether equations say the same: each of a system, in any order; a named value is that value. None where neither
    side is an equation.

    Args:
        same: compares what is none.
    """
    wanted, found = _equations(gold), _equations(answer)
    if not wanted and not found:
        return None
    if wanted and found:
        return _paired(wanted, found) or _same_values(wanted, found, same)
    if wanted:
        return any(same([value], [answer]) for value in _values(wanted))
    if len(found) == 1 and _name(found[0]) is None:  # 4(3a - 2) = 12a - 8 is a computation, as 3+4 = 7 is
        return same([found[0].lhs], [found[0].rhs]) and same([gold], [found[0].rhs])
    return any(same([gold], [value]) for value in _values(found))


def united(formula: Any, either: bool) -> Any:
    """Inequalities in a list as the set of what fulfils them: one of them with `either`, else all."""
    import sympy

    parts: list[Any] = list(formula.args) if isinstance(formula, sympy.FiniteSet) else []
    kinds = (sympy.StrictLessThan, sympy.LessThan, sympy.StrictGreaterThan, sympy.GreaterThan)
    if len(parts) < 2 or not all(isinstance(part, kinds) and sympy.count_ops(part) < 6 for part in parts):
        return formula
    if len(formula.free_symbols) != 1:
        return formula
    sets = [part.as_set() for part in parts]
    return sympy.Union(*sets) if either else sympy.Intersection(*sets)


def _equations(formula: Any) -> list[Any]:
    import sympy

    parts = list(formula.args) if isinstance(formula, sympy.FiniteSet) else [formula]
    return parts if parts and all(isinstance(part, sympy.Eq) for part in parts) else []


def _paired(wanted: list[Any], found: list[Any]) -> bool:
    """Whether each equation has its own among the others."""
    left = list(found)
    for equation in wanted:
        match = next((one for one in left if _same_equation(equation, one)), None)
        if match is None:
            return False
        left.remove(match)
    return not left


def _same_equation(one: Any, other: Any) -> bool:
    """Whether one is the other but for a factor, or for the side on which a part stands."""
    import sympy

    sides = (one.lhs, one.rhs, other.lhs, other.rhs)
    if not all(isinstance(side, sympy.Expr) for side in sides) or one.free_symbols != other.free_symbols:
        return False
    if not one.free_symbols or max(map(sympy.count_ops, sides)) > LARGEST:
        return False
    tops = [sympy.expand(sympy.numer(sympy.together(made.lhs - made.rhs))) for made in (one, other)]
    if any(top == 0 for top in tops):
        return False
    symbols = sorted(one.free_symbols, key=str)
    if all(top.is_polynomial(*symbols) for top in tops):
        factors = [sympy.Poly(top, *symbols).LC() for top in tops]
        return sympy.simplify(sympy.expand(tops[0] * factors[1] - tops[1] * factors[0])) == 0
    return 0 in (sympy.expand(tops[0] - tops[1]), sympy.expand(tops[0] + tops[1]))


def _same_values(wanted: list[Any], found: list[Any], same: Same) -> bool:
    """Whether the same names have the same values: x = 1 or x = -1, and x = \\pm 1."""
    if not {_name(one) for one in wanted} == {_name(one) for one in found} != {None}:
        return False
    one, other = _values(wanted), _values(found)
    return bool(one and other) and same([one[0]], [other[0]])


def _values(equations: list[Any]) -> list[Any]:
    """What names stand for: one value, all values of one name, or those of several names, by the alphabet."""
    import sympy

    names = [_name(equation) for equation in equations]
    if None in names:
        return []
    values = [equation.rhs for equation in equations]
    if len(values) == 1:
        return values
    if len(set(names)) == 1:
        return [sympy.FiniteSet(*values)]
    if len(set(names)) < len(names):
        return []
    ordered = [value for _, value in sorted(zip(names, values, strict=True), key=lambda pair: pair[0])]
    pair = [sympy.Interval.open(*ordered)] if len(ordered) == 2 and _increase(ordered) else []
    return [sympy.Tuple(*ordered), *pair]  # math-verify reads (1, 2) as an interval


def _increase(values: list[Any]) -> bool:
    return all(value.is_number and value.is_real for value in values) and bool(values[0] < values[1])


def _name(equation: Any) -> str | None:
    """What an equation gives a value to: x, f(2), (x, y)."""
    import sympy

    left = equation.lhs
    is_name = isinstance(left, sympy.Symbol | sympy.Tuple | sympy.core.function.AppliedUndef | sympy.Interval)
    return str(left) if is_name else None
