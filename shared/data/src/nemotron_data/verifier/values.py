"""Numbers that are written as a formula, told from a computation that nobody carried out.

is_value("2^{10}"), is_value("\\\\sqrt{16}")     True, True
is_value("3+4"), is_value("8/2/2")             False, False: what was asked, and no answer to it
"""

import re

from nemotron_data.verifier.numbers import plain

FORMULA = re.compile(r"(?=.*[\d\\\u221a])(?:[\d\s.,()+*/^{}!\u00b2\u00b3\u221a-]|\\[a-z]+|\bpi\b|\bsqrt\b)+")
TIMES_POWER_OF_TEN = re.compile(r"\*\s*10\s*\^")
JOINED = re.compile(r"[\w.)}!\u00b2\u00b3]\s*[-+*]|\\(?:div|ast|star|[bp]?mod|gcd|lcm|max|min)\b")
"""Two operands, and what is to be done with them; not the sign of a number or of an exponent."""
SIDE_BY_SIDE = re.compile(r"[\d)}]\s*(?:\\left\s*)?\(|\)\s*\d")
DIVISION = re.compile(r"/|\\[cdt]?frac")
BEFORE_OPERAND = re.compile(
    r"(?:[\d)}%]\s*[a-z]*\s*[+*/\u00f7]|[\d)}%]\s*(?:-|x|\\(?:div|ast|b?mod))"
    r"|\b(?:plus|minus|times|mod|multiplied\s+by|divided\s+by))\s*[($]*$",
    re.IGNORECASE,
)


def is_value(text: str) -> bool:
    """Whether a text is a formula that stands for one number: a power, a root, a single fraction."""
    formula = plain(text)
    if not FORMULA.fullmatch(formula) or SIDE_BY_SIDE.search(text):
        return False
    formula = TIMES_POWER_OF_TEN.sub("^", formula.replace("**", "^"))
    return not JOINED.search(formula) and len(DIVISION.findall(formula)) <= 1


def is_operand(text: str, start: int) -> bool:
    """Whether the number that begins there is what a computation ends in: the 4 of "3 + 4"."""
    return BEFORE_OPERAND.search(text[: start + (text[start] in "+-")]) is not None
