"""Compare numbers to their last digit, which math-verify rounds away.

1 - 1/2^60, 1 - 1/2^61      two numbers, however close
0.5, 1/2                    one: a decimal is the fraction that it is written as
1.41421356237, \\sqrt{2}     one: only of an irrational number 12 digits are enough
"""

from typing import Any

DIGITS = 12
"""How many digits of an irrational number must be right."""
WORKED_OUT = 200  # digits at most, while two irrational numbers seem to be the same
SAME = 1e-60  # as a part of the larger one; two irrational numbers that are closer are one
NOTHING = 1e-100  # below it, an irrational number is zero: HUGE keeps such powers from being worked out
SEEMS = 1e-9  # as a part of the larger one; math-verify takes what is closer for the same, if it does so wrongly


def same_constant(gold: Any, answer: Any) -> bool | None:
    """Whether two numbers are the same, however small or complex; None unless both are numbers."""
    one, other = _constant(gold), _constant(answer)
    if one is None or other is None:
        return None
    return _same(one, other, rounded=_has_decimals(gold) or _has_decimals(answer))


def is_near_miss(one: Any, other: Any) -> bool:
    """Whether two formulas or inequalities are not the same, but so close that math-verify may take them for it.

    They are compared where each variable has some fraction for a value.
    """
    import sympy
    from sympy.core.relational import Relational

    if isinstance(one, Relational) and isinstance(other, Relational):
        left, right = one.lhs - one.rhs, other.lhs - other.rhs
        return is_near_miss(left, right) or is_near_miss(left, -right)
    if isinstance(one, sympy.And | sympy.Or) and isinstance(other, sympy.And | sympy.Or):
        parts = (getattr(made, "_unsorted_args", made.args) for made in (one, other))
        return any(is_near_miss(*both) for both in zip(*parts, strict=False))
    if not isinstance(one, sympy.Expr) or not isinstance(other, sympy.Expr):
        return False
    names = sorted((name for name in one.free_symbols | other.free_symbols if name.name != "i"), key=str)
    values = {name: sympy.Rational(prime, 7) for name, prime in zip(names, sympy.primerange(10, 200), strict=False)}
    points = [_constant(made.subs(values)) for made in (_exact(one), _exact(other))]
    if None in points or _same(*points, rounded=_has_decimals(one) or _has_decimals(other)):
        return False
    distance, size = _distance(*points)
    return distance <= SEEMS * size


def _constant(formula: Any) -> Any:
    """A number, worked out as far as possible without rounding; None for anything else."""
    import sympy

    if not isinstance(formula, sympy.Expr) or {symbol.name for symbol in formula.free_symbols} - {"i"}:
        return None
    if formula.atoms(sympy.core.function.AppliedUndef, sympy.Integral, sympy.Sum):
        return None
    value = _exact(formula.subs(dict.fromkeys(formula.free_symbols, sympy.I)))
    try:
        about = complex(sympy.N(value, 30))
    except (TypeError, ValueError, OverflowError):
        return None
    return value.doit() if abs(about) < float("inf") else None  # nan is not, either


def _same(one: Any, other: Any, rounded: bool) -> bool:
    """Whether two constants are one; with `rounded`, also if 12 digits are the same and either is irrational."""
    if one.is_Rational and other.is_Rational:
        return bool(one == other)
    distance, size = _distance(one, other)
    if size < NOTHING:
        return not any(made.is_Rational and made for made in (one, other))
    return distance <= size * SAME or (rounded and distance < _last_of_twelve(size))


def _distance(one: Any, other: Any) -> tuple[Any, Any]:
    """How far two constants are from each other, and how large the larger is."""
    import sympy

    size = max(abs(sympy.N(one, 15)), abs(sympy.N(other, 15)))
    return abs(sympy.N(one - other, 15, maxn=WORKED_OUT)), size


def _last_of_twelve(size: Any) -> Any:
    """One in the last of twelve digits: 1e-11 of 1.41."""
    import sympy

    return sympy.Float(10) ** (sympy.floor(sympy.log(size, 10)) - DIGITS + 1)


def _exact(formula: Any) -> Any:
    """With each decimal as the fraction that it is written as."""
    import sympy

    return formula.xreplace({made: sympy.Rational(str(made)) for made in formula.atoms(sympy.Float)})


def _has_decimals(formula: Any) -> bool:
    import sympy

    return bool(formula.atoms(sympy.Float))
