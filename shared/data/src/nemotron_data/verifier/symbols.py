"""Mathematics compared by what it means, with math-verify; imported when the first formula is met.

same_formula("\\\\frac{1}{\\\\sqrt{2}}", "\\\\frac{\\\\sqrt{2}}{2}")     True
same_formula("(1, 2)", "(2, 1)")                                False
"""

import re
import threading
from dataclasses import replace
from functools import lru_cache
from typing import Any

from nemotron_data.verifier.equations import has_variables
from nemotron_data.verifier.numbers import POWERS, RAISED
from nemotron_data.verifier.relations import same_constant, same_equations, united

LONGEST = 400
SECONDS = 5
DIGITS_ROUNDED = 12
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
    either = [ALTERNATIVES.search(text) is not None for text in (gold, answer)]
    gold, answer = in_latex(gold), in_latex(answer)
    if not _letters(gold):
        return False
    if max(len(gold), len(answer)) > LONGEST or HUGE.search(gold) or HUGE.search(answer):
        return _letters(gold) == _letters(answer)
    if _letters(gold) == _letters(answer):
        return True
    if WITH_BASE.fullmatch(gold):  # a figure in another base has no value for math-verify
        return False
    wanted, found = parsed(gold), parsed(answer)
    if not wanted or not found:
        return False
    from math_verify import verify

    def same(one: Any, other: Any) -> bool:
        alike = verify(
            one, other, float_rounding=DIGITS_ROUNDED, allow_set_relation_comp=True, timeout_seconds=_seconds(),
            raise_on_error=False,
        )  # fmt: skip
        return bool(alike) or _same_polynomial(one[0], other[0])

    asked, said = united(wanted[0], either[0]), united(found[0], either[1])
    for known in (same_constant(asked, said), same_equations(asked, said, same)):
        if known is not None:
            return known
    return same([asked, *wanted[1:]], [said, *found[1:]])


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
    return bool(parsed(text)) if len(text) <= LONGEST and not HUGE.search(text) else False


@lru_cache(maxsize=4096)
def parsed(text: str) -> list[Any]:
    """math-verify's reading of a formula, as an expression and as text."""
    from math_verify import parse
    from math_verify.parser import LatexExtractionConfig

    inner = text.strip().strip("$").strip()
    extraction = LatexExtractionConfig()
    if LAST_LETTER.search(inner) and has_variables(LAST_LETTER.sub("", inner).rpartition("=")[2]):
        # the h of \\pi r^2 h is no hour
        extraction = replace(extraction, normalization_config=replace(extraction.normalization_config, units=False))
    return parse(f"${inner}$", extraction_config=[extraction], parsing_timeout=_seconds(), raise_on_error=False)


def _seconds() -> Any:
    """math-verify interrupts itself by a signal, which only reaches the main thread."""
    return SECONDS if threading.current_thread() is threading.main_thread() else None


def _letters(text: str) -> str:
    text = re.sub(r"\\(?:left|right|,|;|!|displaystyle)|[\s$]", "", text).replace("\\dfrac", "\\frac").rstrip(".")
    return re.sub(r"\{(\w)\}", r"\1", text)
