"""Equations as they are written, told from a value with its name and from a computation with its result.

is_equation("2x - 9y = 4")        True: what is asked for, or no answer at all
is_equation("x = 4")              False: a value, and name_of("x = 4") is "x"
is_equation("2(3)+1 = 7")         False: a value, worked out
"""

import re
import unicodedata

from nemotron_data.verifier.units import unit_of

SIGN = re.compile(r"(?<![<>!:=])=(?!=)")
GREEK = (
    r"\\(?:var)?(?:alpha|beta|gamma|delta|epsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|chi|psi|omega)"
)
NAME = re.compile(rf"(?:[A-Za-z]|[A-Z]{{2,3}}|{GREEK})(?:'|_\{{?\w+\}}?)*(?:\s*\([^()]{{1,20}}\))?")
LABEL = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox)\s*\{[^{}]*\}")
FUNCTION = re.compile(r"\\?(?:sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|lim|max|min|gcd|lcm|mod|det|deg)(?![A-Za-z])")
TIMES = re.compile(r"(?<=[\d)])\s*x\s*(?=[\d(])")
BREAK = re.compile(r"[,;:\n]|\\\\|\u2192|\u21d2|\\(?:implies|Rightarrow|iff|quad|therefore)\b")
PROSE = re.compile(rf"{BREAK.pattern}|(?<![\\A-Za-z])[A-Za-z]+(?:['\u2019][a-z]+)?(?![A-Za-z(])")
VARIABLE = re.compile(rf"{GREEK}|(?<![A-Za-z\\])[A-Za-z]{{1,3}}(?![A-Za-z])")
UNITS = re.compile(r"(?<=\d)\s*([A-Za-z]+)[\u00b2\u00b3]?(?:\s*/\s*([A-Za-z]+)[\u00b2\u00b3]?)?")
BOUND_VARIABLE = re.compile(r"\\(?:lim|sum|prod|i*int)(?![A-Za-z])")
LAST = re.compile(r"[,;:](?!\d{3})")
"""What ends the right side of the last sign of equality, so that the text ends in something else."""
SENTENCE = re.compile(r"(?<!\\)\b(?:[A-Za-z]{3,}|so|is|of|to|it|in|we|as|at|by)\b(?![({])")
CONSTANTS = {"e", "i"}


def is_equation(text: str) -> bool:
    """Whether what stands left of the last sign of equality is neither a name nor a computation."""
    if "=" not in text:
        return False
    left, right = _last_sides(text)
    if right is None or _is_name(left) or BOUND_VARIABLE.search(left):
        return False
    if re.search(r"[A-Za-z]", right) and not _variables(UNITS.sub(_without_units, left)):  # 5 m + 3 m = 8 m
        return False
    return bool(_variables(left))


def name_of(text: str) -> str | None:
    """What a value is called, in one manner of writing: the x of "x = 4"."""
    left, right = _last_sides(text)
    if right is None:
        return None
    if not _is_name(left):  # "x = 2+2 = 4"
        first = SIGN.split(text)[0]
        left = _formula(first) if not _variables(left) else ""
    return _written(left) if _is_name(left) else None


def names_another(text: str, gold: str) -> bool:
    """Whether a value is given to another name than that of the expected one: y = 4, and not x = 4."""
    asked = name_of(gold) if gold.count("=") == 1 and "," not in gold else None
    if asked is None or has_variables(gold.rpartition("=")[2]):
        return False
    said = name_of(text)
    return said is not None and said != asked


def is_bare_equation(text: str) -> bool:
    """Whether a text is an equation, and no sentence that ends in one."""
    return is_equation(text) and not SENTENCE.search(text)


def has_variables(text: str) -> bool:
    """Whether a formula names what it does not know."""
    return bool(_variables(LABEL.sub(" ", text)))


def _last_sides(text: str) -> tuple[str, str | None]:
    sides = SIGN.split(LABEL.sub(" ", text.replace("$", " ").replace("&", " ")))
    whole = len(sides) > 1 and not LAST.search(sides[-1])
    return (_formula(sides[-2]), sides[-1]) if whole else (text, None)


def _formula(text: str) -> str:
    """What follows the last word, or comma, of a text."""
    start = max((word.end() for word in PROSE.finditer(text) if _ends_words(word, text)), default=0)
    return text[start:].strip()


def _ends_words(found: re.Match[str], text: str) -> bool:
    """Whether a word or a comma is none of a formula's."""
    word, before = found[0], text[: found.start()]
    if BREAK.fullmatch(word):
        return before.count("(") <= before.count(")")
    if len(word) == 1:  # "a total", "I get"
        return word in "aAI" and re.match(r"\s+[A-Za-z]{2}", text[found.end() :]) is not None
    return not (_is_product(found) or FUNCTION.fullmatch(word))


def _is_product(found: re.Match[str]) -> bool:
    """Whether two or three letters are variables side by side, and no word or unit: the xy of 3xy, the mc of mc^2."""
    word, text = found[0], found.string
    is_word = re.search(r"[eiou]", word) or (len(word) == 3 and re.fullmatch(r"[A-Z][a-z]+", word))
    beside = re.search(r"(?:^|[-+*/^({=}\d])\s*$", text[: found.start()]) and re.match(
        r"\s*(?:[-+*/^_)}]|$)", text[found.end() :]
    )
    return bool(1 < len(word) < 4 and not is_word and unit_of(word) is None and beside)


def _is_name(text: str) -> bool:
    return NAME.fullmatch(text.strip()) is not None


def _variables(text: str) -> list[str]:
    text = FUNCTION.sub(" ", TIMES.sub("*", text))
    return [
        found[0]
        for found in VARIABLE.finditer(text)
        if found[0] not in CONSTANTS and (found[0][0] == "\\" or len(found[0]) == 1 or _is_product(found))
    ]


def _without_units(found: re.Match[str]) -> str:
    return "" if all(unit_of(unit) for unit in found.groups() if unit) else found[0]


def _written(name: str) -> str:
    """A name in one manner of writing."""
    signs = (unicodedata.name(sign, "") if ord(sign) > 0x36F else sign for sign in name)
    name = "".join("\\" + sign.rpartition(" ")[2].lower() if sign.startswith("GREEK") else sign for sign in signs)
    return re.sub(r"[\s{}]", "", name).casefold()
