"""Compare mathematics by its meaning, with math-verify; imported when the first formula is met.

same_formula("\\\\frac{1}{\\\\sqrt{2}}", "\\\\frac{\\\\sqrt{2}}{2}")     True
same_formula("(1, 2)", "(2, 1)")                                False

Equations, systems and constants are compared here: math-verify takes the right side for the whole of an equation, and
rounds what is close to zero to zero.
"""

import logging
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, TypeVar

from nemotron_data.verifier.exact import DIGITS, is_near_miss, same_constant
from nemotron_data.verifier.lists import Listed, Region, Same, as_written, members_in_order, same_lists
from nemotron_data.verifier.numbers import POWERS, RAISED
from nemotron_data.verifier.units import has_variables

Found = TypeVar("Found")

LARGEST = 60  # operations; of a larger equation the sides are compared as they are written


def same_equations(gold: Any, answer: Any, same: Same) -> bool | None:
    """Whether equations say the same: each of a system, in any order; a named value is that value. None where neither
    side is an equation.

    Args:
        same: compares other formulas.
    """
    wanted, found = _equations(gold), _equations(answer)
    if not wanted and not found:
        return None
    if wanted and found:
        return _paired(_by_name(wanted), _by_name(found)) or _same_values(wanted, found, same)
    if wanted:
        return _is_value_of(wanted, answer, same)
    return _is_value_of(found, gold, same)


def _is_value_of(equations: list[Any], formula: Any, same: Same) -> bool:
    if len(equations) == 1 and _name(equations[0]) is None:
        # 4(3a - 2) = 12a - 8 is a computation, as 3+4 = 7 is
        return same(equations[0].lhs, equations[0].rhs) and same(equations[0].rhs, formula)
    return any(same(value, formula) for value in _values(equations))


def united(formula: Any, either: bool) -> Any:
    """Inequalities in a list as the set of what fulfils them: one of them with `either`, else all."""
    import sympy

    parts: list[Any] = list(formula.args) if isinstance(formula, sympy.FiniteSet) else []
    kinds = (sympy.StrictLessThan, sympy.LessThan, sympy.StrictGreaterThan, sympy.GreaterThan)
    if len(parts) < 2 or not all(isinstance(part, kinds) and sympy.count_ops(part) < 6 for part in parts):
        return formula
    if not all(map(is_solvable, parts)):
        return formula
    if len(formula.free_symbols) != 1:
        return formula
    sets = [part.as_set() for part in parts]
    return Region(sympy.Union(*sets) if either else sympy.Intersection(*sets))


def _equations(formula: Any) -> list[Any]:
    import sympy

    parts = list(formula.args) if isinstance(formula, sympy.FiniteSet) else [formula]
    return parts if parts and all(isinstance(part, sympy.Eq) for part in parts) else []


def _by_name(equations: list[Any]) -> list[Any]:
    """(x, y) = (1, 2) as x = 1 and y = 2."""
    import sympy

    single = []
    for equation in equations:
        names, values = members_in_order(equation.lhs), members_in_order(equation.rhs)
        if names and len(names) == len(values):
            single += map(sympy.Eq, names, values)
        else:
            single.append(equation)
    return single


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
    return bool(one and other) and same(one[0], other[0])


def _values(equations: list[Any]) -> list[Any]:
    """What names stand for: one value, all values of one name, or those of several names, by the alphabet."""
    import sympy

    names = [_name(equation) for equation in equations]
    if None in names:
        return []
    values = [_as_many(equation.lhs, equation.rhs) for equation in equations]
    if len(values) == 1:
        return values
    if len(set(names)) == 1:
        return [sympy.FiniteSet(*values)]
    if len(set(names)) < len(names):
        return []
    ordered = [value for _, value in sorted(zip(names, values, strict=True), key=lambda pair: pair[0])]
    return [sympy.Tuple(*ordered)]


def _as_many(name: Any, value: Any) -> Any:
    """What several names stand for is a pair and no interval: the (1, 2) of (x, y) = (1, 2)."""
    import sympy

    members = members_in_order(value) if members_in_order(name) else ()
    return sympy.Tuple(*members) if members else value


def _name(equation: Any) -> str | None:
    """What an equation gives a value to: x, f(2), (x, y)."""
    import sympy

    left = equation.lhs
    is_name = isinstance(left, sympy.Symbol | sympy.Tuple | sympy.core.function.AppliedUndef | sympy.Interval)
    return str(left) if is_name else None


LONGEST = 400
SECONDS = 5.0  # of the thread's processor time, for all comparisons of one formula
AGAIN = 0.2  # seconds until a computation that swallowed its interruption is interrupted again
LARGEST_POLYNOMIAL = 40  # operations; expanding a larger one may take long
LARGEST_POWER = 12
# Powers of powers, factorials and the like, which a computer algebra would try to write out.
HUGE = re.compile(
    r"(?:\^|\*\*)\s*[{(]?\s*\w{1,8}\s*(?:\^|\*\*)|\d{3,}\s*!|(?:\^|\*\*)\s*\{?\s*\d{3,}"
    # more than C(99, 99); sums and integrals that somebody should have worked out
    r"|\\[dt]?binom\s*(?:\{[^{}]*\}\s*)?\{?[^{}]{0,40}?(?:\d{3}|\^)|\\(?:i*int|oint|sum|prod)\b"
)


LAST_LETTER = re.compile(r"\s*(?<![A-Za-z\\])[A-Za-z]$")
ALTERNATIVES = re.compile(r"\bor\b")
WITH_BASE = re.compile(r"\s*[0-9A-F]+_\{?\d+\}?\s*")
# Formulas written without LaTeX.
WRITTEN = (
    (
        re.compile(r"\bsqrt\s*\(([^()]*)\)|\u221a\s*\(([^()]*)\)|\u221a\s*(\d+|[a-z])"),
        lambda found: rf"\sqrt{{{next(filter(None, found.groups()))}}}",
    ),
    (re.compile(r"\\(?:mathrm|text)\s*\{\s*([eid])\s*\}"), r"\1"),
    (re.compile(r"\\varnothing\b|\\\{\s*\\\}|\u2205"), r"\\emptyset "),
    (
        re.compile(r"\\begin\{cases\}(.*?)(?:\\\\)?\s*\\end\{cases\}", re.DOTALL),
        lambda found: found[1].replace("\\\\", ", ").replace("&", ""),
    ),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"\^\s*(-\s*(?:\d+|[a-z])|\d{2,})"), r"^{\1}"),
    (re.compile(RAISED), lambda found: f"^{{{found[0].translate(POWERS)}}}"),
    (re.compile(r"(?<!\\)\bpi\b|\u03c0"), r"\\pi "),
    (re.compile(r"(?<!\\)\b(?:infinity|infty|inf)\b|\u221e"), r"\\infty "),
    (re.compile(r"\u2264|<="), r"\\leq "),
    (re.compile(r"\u2265|>="), r"\\geq "),
    (re.compile(r"\u222a"), r"\\cup "),
    (re.compile(r"\u2212"), "-"),
    (re.compile(r"(?<=[\w)}])\s*\*\s*(?=[\w({\\])"), r" \\cdot "),
    (re.compile(r"\\text\s*\{\s*(?:or|and)\s*\}|\s+(?:or|and)\s+"), ", "),
    (re.compile(r"(?<![\\a-z])(ln|log|exp|sin|cos|tan)(?=\s*[({\d\\])"), r"\\\1"),
)  # fmt: skip


def same_formula(gold: str, answer: str) -> bool:
    """Whether two formulas mean the same. What cannot be read means nothing."""
    either = ALTERNATIVES.search(gold) is not None, ALTERNATIVES.search(answer) is not None
    gold, answer = in_latex(gold), in_latex(answer)
    if not _letters(gold):
        return False
    if max(len(gold), len(answer)) > LONGEST or HUGE.search(gold) or HUGE.search(answer):
        return _letters(gold) == _letters(answer)
    if _letters(gold) == _letters(answer) and either[0] == either[1]:
        return True
    if WITH_BASE.fullmatch(gold):  # a figure in another base has no value for math-verify
        return False
    return _same_in_time(gold, answer, either)


class OutOfTime(BaseException):
    """A computation took too long. Not an Exception, which sympy and math-verify catch in many places."""


def in_time(compute: Callable[[], Found], otherwise: Found) -> Found:
    """What a computation finds, or `otherwise` after SECONDS of the thread's processor time.

    Interrupts again until the interruption gets through: sympy has handlers that catch everything. Signals reach the
    main thread only, so in other threads nothing is interrupted; there only `is_solvable` and HUGE bound the work.
    """
    if threading.current_thread() is not threading.main_thread():
        return compute()
    start, running = time.thread_time(), True

    def interrupt(number: int, frame: Any) -> None:
        if running and time.thread_time() - start >= SECONDS:  # the timer counts other threads, too
            raise OutOfTime

    before = signal.signal(signal.SIGVTALRM, interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS, AGAIN)
    try:
        try:
            return compute()
        finally:
            running = False
    except OutOfTime:
        return otherwise
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before or signal.SIG_DFL)


def is_solvable(formula: Any) -> bool:
    """Whether solving it as an inequality takes little: sympy isolates all complex roots of its polynomials."""
    import sympy

    powers = formula.atoms(sympy.Pow) if isinstance(formula, sympy.Basic) else ()
    return not any(power.exp.is_Integer and abs(power.exp) > LARGEST_POWER and power.free_symbols for power in powers)


@lru_cache(maxsize=4096)
def _same_in_time(gold: str, answer: str, either: tuple[bool, bool]) -> bool:
    return _in_time(lambda: _same_parsed(gold, answer, either), otherwise=False)


def _same_parsed(gold: str, answer: str, either: tuple[bool, bool]) -> bool:
    wanted, found = parsed(gold), parsed(answer)
    if not wanted or not found:
        return False
    from sympy import Set
    from sympy.core.relational import Relational

    formulas = wanted[0], found[0]
    if any(isinstance(one, Relational) and not is_solvable(one) for one in formulas) and any(
        isinstance(one, Set) for one in formulas
    ):
        return False  # would have to be solved

    asked, said = (
        as_written(united(made[0], alternatives), text, alternatives)
        for made, text, alternatives in zip((wanted, found), (gold, answer), either, strict=True)
    )
    texts = ({made for made in both if isinstance(made, str)} for both in (wanted, found))
    return (either[0] == either[1] and bool(set.intersection(*texts))) or _same(asked, said)


def _same(one: Any, other: Any) -> bool:
    """Whether two formulas mean the same, and so do their members where they have some."""
    from math_verify import verify

    for compare in (same_constant, partial(same_equations, same=_same), partial(same_lists, same=_same)):
        if (known := compare(one, other)) is not None:
            return known
    if isinstance(one, Listed) or isinstance(other, Listed):
        return False
    one, other = (made.numbers if isinstance(made, Region) else made for made in (one, other))
    alike = verify(
        one, other, float_rounding=DIGITS, allow_set_relation_comp=True, timeout_seconds=None, raise_on_error=False
    )
    return bool(alike or _same_polynomial(one, other) or _same_region(one, other)) and not is_near_miss(one, other)


def _same_region(one: Any, other: Any) -> bool:
    """Whether inequalities of one variable hold for the same numbers: |x| < 1, and -1 < x < 1."""
    import sympy
    from sympy.core.relational import Relational

    both = one, other
    if not all(isinstance(made, Relational | sympy.And | sympy.Or) and is_solvable(made) for made in both):
        return False
    if (
        one.free_symbols != other.free_symbols
        or len(one.free_symbols) != 1
        or any(made.atoms(sympy.Eq) for made in both)
    ):
        return False
    if max(map(sympy.count_ops, both)) > LARGEST_POLYNOMIAL:
        return False
    try:
        return bool(one.as_set() == other.as_set())
    except Exception:  # what sympy cannot solve, it reports in many ways
        return False


def _same_polynomial(one: Any, other: Any) -> bool:
    """math-verify compares some products only as they are written, such as (a-b)(a+b)."""
    import sympy

    both = isinstance(one, sympy.Expr) and isinstance(other, sympy.Expr)
    small = both and max(sympy.count_ops(one), sympy.count_ops(other)) < LARGEST_POLYNOMIAL
    return bool(small and _is_small_polynomial(one) and _is_small_polynomial(other) and sympy.expand(one - other) == 0)


def _is_small_polynomial(formula: Any) -> bool:
    """Whether it can be expanded at once: no functions, such as binomials, and no large powers of many variables."""
    import sympy

    if not formula.is_polynomial() or formula.atoms(sympy.Function):
        return False
    largest = LARGEST_POWER if len(formula.free_symbols) <= 3 else 4
    return all(power.exp.is_Integer and abs(power.exp) <= largest for power in formula.atoms(sympy.Pow))


def in_latex(text: str) -> str:
    """A formula with the signs that LaTeX has for what people type."""
    for pattern, replaced in WRITTEN:
        text = pattern.sub(replaced, text)
    return text.strip()


def readable(text: str) -> bool:
    """Whether math-verify makes anything of it."""
    if len(text) > LONGEST or HUGE.search(text):
        return False
    return _in_time(lambda: bool(parsed(text)), otherwise=False)


def _in_time(compute: Callable[[], bool], otherwise: bool) -> bool:
    """As `in_time`, which importing sympy does not count for: that takes seconds, and must not be interrupted."""
    import math_verify  # noqa: F401

    # it warns that it has no time limit: ours bounds all its calls together
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    return in_time(compute, otherwise)


@lru_cache(maxsize=4096)
def parsed(text: str) -> list[Any]:
    """math-verify's reading of a formula, as an expression and as text."""
    from math_verify import parse
    from math_verify.parser import LatexExtractionConfig

    inner = text.strip().strip("$").strip()
    extraction = LatexExtractionConfig()
    if LAST_LETTER.search(inner) and has_variables(LAST_LETTER.sub("", inner).rpartition("=")[2]):
        # the h of \\pi r^2 h is not a hour
        extraction = replace(extraction, normalization_config=replace(extraction.normalization_config, units=False))
    without_limit: Any = None  # its own limit interrupts once, and sympy may swallow that; see `in_time`
    return parse(f"${inner}$", extraction_config=[extraction], parsing_timeout=without_limit, raise_on_error=False)


def _letters(text: str) -> str:
    text = re.sub(r"\\(?:left|right|,|;|!|displaystyle)|[\s$]", "", text).replace("\\dfrac", "\\frac").rstrip(".")
    return re.sub(r"\{(\w)\}", r"\1", text)
