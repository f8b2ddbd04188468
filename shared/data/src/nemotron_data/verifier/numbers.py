"""Numbers, dates, times of day and ratios as people and models write them, exactly.

read_number("$1,234.50")      Number(Fraction(2469, 2))
read_number("50 %")           Number(Fraction(50), percent=True)
read_number("2 1/2 cups")     Number(Fraction(5, 2))
read_number("7 of 8")         None
dates_in("the 4th of July 1776, or 1776-07-04")     [(1776, 7, 4), (1776, 7, 4)]
is_value("2^{10}"), is_value("3+4")                 True, False: a number written as a formula, and a computation
"""

import re
import unicodedata
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from nemotron_data.verifier.units import in_one_unit, is_equation, name_of, unit_of

LONGEST = 400  # digits; a longer one is not an answer of a person's, and powers of ten grow without end
LARGEST_EXPONENT = 400
NEAR = 100  # characters before and behind a number that say what it is
SIGNS = str.maketrans({
    "\u2212": "-", "\u2013": "-", "\ufe63": "-", "\uff0d": "-", "\u00d7": "*", "\u00b7": "*", "\u2044": "/",
    "\uff0e": ".", "\uff05": "%", "\uff0c": ",", "\u00bd": " 1/2", "\u00bc": " 1/4", "\u00be": " 3/4",
    "\u2153": " 1/3", "\u2154": " 2/3", "\u2155": " 1/5", "\u2156": " 2/5", "\u2157": " 3/5", "\u2158": " 4/5",
    "\u215b": " 1/8", "\u215c": " 3/8", "\u215d": " 5/8", "\u215e": " 7/8",
})  # fmt: skip
POWERS = str.maketrans("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b", "0123456789-")
RAISED = r"[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207b]+"
SUPERSCRIPT = re.compile(rf"(?<=10)\s*({RAISED})")
SPACES = re.compile(r"[\u00a0\u2009\u202f\u2007]")
INVISIBLE = re.compile(r"[\u200b-\u200d\u2060\ufeff]")
LATEX = (
    (re.compile(r"\\[()\[\]]"), " "),
    (re.compile(r"\$(?=[^$\n]*\\[a-z])([^$\n]*)\$"), r" \1 "),
    (re.compile(r"(?<=\d)\s*\\[dt]?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}"), r" \1/\2"),
    (re.compile(r"\\d?t?frac\s*\{\s*(-?[\d.,]+)\s*\}\s*\{\s*([\d.,]+)\s*\}"), r"(\1)/(\2)"),
    (re.compile(r"\\[dt]?frac\s*(\d)\s*(\d)(?!\d)"), r"(\1)/(\2)"),
    (
        re.compile(r"(?<!\d)(\d{1,40})\.(\d{0,40})\\(?:overline|bar)\s*\{(\d{1,9})\}"),
        lambda found: _repeating(*found.groups()),
    ),
    (re.compile(r"(?<!\d)(\d{1,40})\.(\d{0,40})\((\d{1,9})\)"), lambda found: _repeating(*found.groups())),
    (
        re.compile(r"(?<!\d)(\d{1,40})\.(\d{0,9}?)(\d{1,9}?)\3{1,20}(?:\.{3}|\u2026|\\[lc]?dots\b)"),
        lambda found: _repeating(*found.groups()),
    ),
    (re.compile(r"\{,\}|,\\!|\\,(?=\d{3})"), ","),
    (re.compile(r"\\(?:left|right|,|;|:|!|quad|displaystyle)\b|\\[,;:! ]|~"), " "),
    (re.compile(r"\\(?:text|mathrm|textbf|mathbf|textit|operatorname|mbox)\s*\{([^{}]*)\}"), r" \1"),
    (re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degree|\u00b0"), " degrees"),
    (re.compile(r"\\(?:times|cdot)"), "*"),
    (re.compile(r"\\([$%#&_])"), r"\1"),
    (re.compile(r"\$\s?(\d[\d,]*) and (\d{1,2}) cents?\b"), lambda found: f"${found[1]}.{int(found[2]):02d}"),
    (re.compile(r"(?<=\d) and (?=\d+/\d)"), " "),
    (re.compile(r"(?<=\d) and (?:a|one) half\b"), " 1/2"),
    (re.compile(r"\b(?:minus|negative)\s+(?=[\d.$])", re.IGNORECASE), "-"),
)
DIGITS = r"(?:\d{1,3}(?:[, ]\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+|\d+\."
PLAIN = re.compile(rf"({DIGITS})")
NUMBER = re.compile(
    rf"""(?P<sign>[-+]?)\s*+(?P<currency>[$\u20ac\u00a3\u00a5\u20b9])?\s*+(?P<sign2>[-+]?)
    (?:\(?(?P<whole>\d+)\s+(?P<top>\d+)\s*/\s*(?P<bottom>\d+)\)?            # 2 1/2
      |\(?(?P<numerator>-?(?:{DIGITS}))\)?\s*/\s*\(?(?P<denominator>(?:{DIGITS}))\)?
      |(?P<mantissa>{DIGITS})(?:\s*[eE](?P<e>[-+]?\d+)|\s*[*x]\s*10\s*(?:\^|\*\*)\s*\{{?\(?(?P<power>[-+]?\d+)\)?\}}?)?
    )\s*(?P<percent>%|percent\b|per\s+cent\b)?""",
    re.VERBOSE,
)
# A unit: words without a figure among them; `m^2`, `m²`, `km/h`. A word is taken whole (`++`): in how many ways a long
# one could be six is tried for hours.
UNIT = re.compile(
    r"\s*[-]?\s*(?:[A-Za-z\u00b5\u03bc\u03a9\u2126\u20ac\u00a3\u00a5\u20b9\u00a2\"'()/]++(?:\^\{?-?\d\}?|[\u00b2\u00b3])?[\s/*-]*+){0,6}"
)
ONE_UNIT = r"(?:[A-Za-z\u00b5\u03bc\u03a9\u2126]+|[\u20ac\u00a3\u00a5\u20b9\u00a2])(?:\^\{?[23]\}?|[\u00b2\u00b3])?"
UNIT_NAME = re.compile(
    rf"\s*-?\s*((?:(?:square|sq\.?|cubic)\s+)?{ONE_UNIT}(?:\s*(?:/|\bper\b)\s*{ONE_UNIT})?)(?![A-Za-z^/\u00b2\u00b3])"
)
OPERATION = re.compile(
    r"\s*+-?\s*+(?:squared|cubed|factorial|plus|minus|divided|multiplied|to\s+the\s+power|mod(?:ulo)?|doubled|tripled"
    r"|halved|(?:degrees\s+)?below\s+zero|times\s+[b-z]|(?:more|less|fewer)\s+than\s+[b-z]|per\s+[b-z]|sin|cos|tan|log|ln|sqrt)\b"
    # 100-x, 1/x, 7 + n; but 7 - a bit, 12-m poles, and 5/s
    r"|\s*+(?:[+*^]\s*+[A-Za-z]|-\s*+[A-Za-z](?!\s+[a-z]{2})|/\s*+(?![smhdlg]\b)[A-Za-z])(?![A-Za-z\d'])",
    re.IGNORECASE,
)
"""What makes another number of one, where a unit would stand."""
OPERATOR = re.compile(r"\b(?:half(?:\s+of)?|twice|double|triple|over|under|above|below)\s+[$\u20ac\u00a3]?$", re.I)
"""What makes another number, or a bound, of the one that follows."""
VARIABLE = re.compile(r"\s*\*?\s*(?:pi\b|[abceinpqrtuvwxyz](?![A-Za-z]))")
PRODUCT = re.compile(r"(?!cc)[abcxyz]{2,3}(?![A-Za-z])")
"""Variables right behind a figure, as in 5xy."""
POWER = re.compile(r"(?:[A-Za-ln-z]|m(?=\s*\^\s*\{?\s*(?![23]\b)))\s*\^")
"""A power of a variable right behind a figure, as in 3k^2; of single letters only metres are squared or cubed."""
LETTERS = re.compile(r"[a-z]{2,3}")
"""What may be variables there where the value has a name: the bh of A = 1/2 bh."""
SCALES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
    "k": 10**3,
    "halves": Fraction(1, 2), "thirds": Fraction(1, 3), "fifths": Fraction(1, 5), "sixths": Fraction(1, 6),
    "sevenths": Fraction(1, 7), "eighths": Fraction(1, 8), "ninths": Fraction(1, 9), "tenths": Fraction(1, 10),
    "hundredths": Fraction(1, 100), "thousandths": Fraction(1, 1000),
}  # fmt: skip
IN_FIGURES = {"k"}
"""Scales of figures only: a k without one is a variable."""
NAMED = {name: number for number, name in enumerate((
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
))}  # fmt: skip
TENS = {name: 10 * number for number, name in enumerate((
    "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
), start=2)}  # fmt: skip
PARTS = {"half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8,
         "ninth": 9, "tenth": 10, "hundredth": 100}  # fmt: skip
IN_WORDS = re.compile(
    rf"\b(?:(?:minus|negative)\s+)?(?:{'|'.join([*NAMED, *TENS])}|an?\s+(?:hundred|thousand|million|dozen|half|third|"
    r"quarter|fourth|fifth|sixth|eighth|tenth)|half|three-quarters|two-thirds)\b",
    re.IGNORECASE,
)
"""Where a number in words may begin."""


POUNDS = {unit_of("\u00a3"), unit_of("pounds")}
"""Money and mass of one name."""


@dataclass(frozen=True)
class Number:
    """An exact value; `percent` where a percent sign stands behind it, which is not in the value; and its unit."""

    value: Fraction
    percent: bool = False
    unit: tuple[str, Fraction] | None = None

    def equals(self, other: "Number") -> bool:
        """Whether both are the same answer: 50 % is 0.5, and is also 50, where the other leaves the sign out."""
        rates = ["/" in number.unit[0] for number in (self, other) if number.unit]
        if self.unit and other.unit and (rates[0] == rates[1] or "money" not in self.unit[0]):
            if {self.unit, other.unit} == POUNDS:
                return self.value == other.value
            same = self.unit[0] == other.unit[0]
            return same and self.value * self.unit[1] == other.value * other.unit[1]
        if self.value == other.value:
            return self.percent == other.percent or abs(self.value) > 1  # 0.5 % is hardly what 0.5 means
        return self.percent != other.percent and self.scaled == other.scaled

    @property
    def scaled(self) -> Fraction:
        """With the percent sign counted in."""
        return self.value / 100 if self.percent else self.value


@lru_cache(maxsize=256)  # one answer is looked at several times
def plain(text: str) -> str:
    """Text with the signs of numbers in their plainest form: minus, spaces, LaTeX's fractions and units."""
    text = SUPERSCRIPT.sub(lambda found: "^" + found[1].translate(POWERS), text)
    text = INVISIBLE.sub("", SPACES.sub(" ", text)).translate(SIGNS)
    text = "".join(unicodedata.normalize("NFKC", sign) if unicodedata.category(sign) == "Nd" else sign for sign in text)
    for pattern, replaced in LATEX:
        text = pattern.sub(replaced, text)
    return in_one_unit(text)


def read_number(text: str) -> Number | None:
    """The number that a text is, with a currency and a unit around it; None where it is something else, such as an
    equation or a factorial."""
    if is_equation(text):
        return None
    text = re.sub(r"^\$(\\\$.*)\$$", r"\1", text.strip())
    text = plain(text).strip()
    text = text.replace("$", "").strip() if text.count("$") == 2 else text
    named = name_of(text) is not None
    if not re.search(r",|\b(?:or|and)\b|[<>]", text):
        text = text.rpartition("=")[2].strip()
    text = re.sub(r"^(?:about|approximately|exactly|US|USD|EUR)\s*", "", text).strip()
    found = NUMBER.match(text)
    if found is None:
        return _in_words(text)
    rest = text[found.end() :]
    if rest.startswith("!"):
        return None
    unit = UNIT.fullmatch(rest.strip().rstrip(".!,;").strip())
    if unit is None or unit[0].rstrip().endswith(("-", "/")) or VARIABLE.match(rest) or OPERATION.match(rest):
        return None
    letters = PRODUCT.match(rest) or POWER.match(rest) or (named and LETTERS.fullmatch(rest) and unit_of(rest) is None)
    if letters and not found[0][-1:].isspace():
        return None
    return _value(found, rest)


def numbers_in(text: str) -> list[tuple[int, Number]]:
    """Every number of a text with its place, apart from times, dates and what belongs to a word."""
    text = plain(text)
    found = []
    for match in NUMBER.finditer(text):
        start = match.end() - len(match[0].lstrip())
        before, after = text[max(0, start - NEAR) : start], text[match.end() : match.end() + NEAR]
        in_word = re.search(r"[\w.:/^\u00b1]$|\^\{$|\\pm\s*$|_\{?$", before) or re.match(r":\d|\w*\d|/\d|-\d", after)
        number = _value(match, after)
        operated = OPERATION.match(after) or OPERATOR.search(before)
        if number is not None and not in_word and not operated:
            # "10 - 3", "7-8": a sign after a figure or a bracket is an operator
            if match["sign"] and re.search(r"[\w)]\s*$", before) and number.value < 0:
                number = replace(number, value=-number.value)
            found.append((start, number))
    return found


def _value(found: re.Match[str], rest: str) -> Number | None:
    parts = found.groupdict()
    if max(len(part or "") for part in parts.values()) > LONGEST:
        return None
    if parts["whole"]:
        value = _fraction(parts["top"], parts["bottom"])
        value = None if value is None else int(parts["whole"]) + value
    elif parts["numerator"]:
        value = _fraction(parts["numerator"], parts["denominator"])
    else:
        exponent = int(parts["e"] or parts["power"] or 0)
        if abs(exponent) > LARGEST_EXPONENT:
            return None
        value = _decimal(parts["mantissa"]) * Fraction(10) ** exponent
    if value is None:
        return None
    if "-" in (parts["sign"], parts["sign2"]):
        value = -value
    scale = re.match(r"\s*-?\s*([A-Za-z]+)\b", rest)
    kelvin = scale and scale[1] == "K" and found[0][-1:].isspace()  # 5 K, but 5K and 1.5 k
    scaled = SCALES.get(scale[1].lower()) if scale and not kelvin else None
    rest = rest[scale.end() :] if scale and scaled else rest
    unit = UNIT_NAME.match(rest)
    if unit and unit[1] == "in" and re.match(r"[.\s]*\w", rest[unit.end() :]):
        unit = None  # "60 in total", "60 in 2024"
    found_unit = unit_of(unit[1]) if unit else unit_of(parts["currency"] or "")
    return Number(value * (scaled or 1), bool(parts["percent"]), found_unit)


def _decimal(text: str) -> Fraction:
    return Fraction(text.replace(",", "").replace(" ", "").rstrip(".") or "0")


def _fraction(top: str, bottom: str) -> Fraction | None:
    divisor = _decimal(bottom)
    return _decimal(top) / divisor if divisor else None


def _repeating(whole: str, fixed: str, period: str) -> str:
    """0.1666..., written with a line above its period, as a fraction."""
    nines = (10 ** len(period) - 1) * 10 ** len(fixed)
    value = int(whole) + Fraction(int(fixed + period) - int(fixed or 0), nines)
    return f"({value.numerator})/({value.denominator})"


def _in_words(text: str) -> Number | None:
    """Whole numbers in words, as "one thousand and forty-two apples", and the commonest fractions."""
    words = re.findall(r"[a-z]+", text.lower())
    negative = words[:1] in (["minus"], ["negative"])
    words = words[negative:]
    if (part := _part(words)) is not None:
        return Number(-part if negative else part)
    words = words[words[:1] == ["a"] :]
    words = ["one", *words] if words and words[0] in SCALES else words
    known = NAMED | TENS
    if not words or words[0] not in known or not IN_FIGURES.isdisjoint(words):
        return None
    total, group, rest = 0, 0, list(words)
    while rest and (rest[0] in known or rest[0] in SCALES or (rest[0] == "and" and len(rest) > 1 and rest[1] in known)):
        word = rest.pop(0)
        if word == "hundred":
            group *= 100
        elif word in SCALES:
            total, group = total + group * SCALES[word], 0
        elif word != "and":
            group += known[word]
    value = Fraction(total + group)
    if rest[:3] == ["and", "a", "half"]:
        value, rest = value + Fraction(1, 2), rest[3:]
    if len(rest) > 4 or {"or", "point", "half", *known} & set(rest):
        return None
    return Number(-value if negative else value)


def is_in_words(text: str) -> bool:
    """Whether a text is a whole number in words and nothing besides: "twenty-one", but not "seven dwarfs"."""
    words = re.findall(r"\w+", text.lower())
    return (
        bool(words)
        and IN_FIGURES.isdisjoint(words)
        and all(word in NAMED or word in TENS or word in SCALES or word == "and" for word in words)
    )


def _part(words: list[str]) -> Fraction | None:
    """One or several parts of a whole: half, a third, three quarters, one eighth of it."""
    several, rest = (
        NAMED.get(words[0], 1) if words else 0,
        words[bool(words and (words[0] in NAMED or words[0] == "a")) :],
    )
    name = rest[0].removesuffix("s") if rest else ""
    if not several or name not in PARTS or len(rest) > 4 or set(rest[1:]) & {"or", *NAMED, *TENS}:
        return None
    return Fraction(several, PARTS[name])


def number_in_words(sentence: str) -> str | None:
    """The end of a sentence that is a number in words, with its unit: "twenty-one years old"; None without one."""
    ends = (sentence[found.start() :] for found in IN_WORDS.finditer(sentence))
    return next((end for end in ends if not re.search(r"\d", end) and read_number(end) is not None), None)


MONTHS = [
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
]  # fmt: skip
MONTH = "|".join(f"{name}|{name[:3]}\\.?" for name in MONTHS)
DATE = re.compile(
    rf"(?P<month>{MONTH})\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\b(?:\s*,?\s+(?P<year>\d{{4}})\b)?"
    rf"|(?P<day2>\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?(?P<month2>{MONTH})\b(?:\s*,?\s+(?P<year2>\d{{4}})\b)?"
    r"|\b(?P<year3>\d{4})-(?P<month3>\d{2})-(?P<day3>\d{2})\b",
    re.IGNORECASE,
)


def dates_in(text: str) -> list[tuple[int, int, int]]:
    """Year, month and day of each date of a text, in its order; the year is 0 where none is named."""
    found = []
    for match in DATE.finditer(text):
        year, month, day = (
            next(filter(None, (match[f"{part}{number}"] for number in ("", "2", "3"))), "0")
            for part in ("year", "month", "day")
        )
        number = int(month) if month.isdigit() else [name[:3] for name in MONTHS].index(month[:3].lower()) + 1
        found.append((int(year), number, int(day)))
    return found


CLOCK = re.compile(r"\b(\d{1,2}):(\d\d)(?:\s*([ap])\.?\s?m\b)?|\b(\d{1,2})\s*([ap])\.?\s?m\b", re.IGNORECASE)
RATIO = re.compile(r"\b(\d+)\s*(?::|to)\s*(\d+)\b(?!\s*[ap]\.?m)")


def clock_times_in(text: str) -> list[tuple[int, int]]:
    """Hour and minute of each time of day; one without am or pm counts where its minutes have two figures."""
    found = []
    for match in CLOCK.finditer(plain(text)):
        hour, minute = int(match[1] or match[4]), int(match[2] or 0)
        half = (match[3] or match[5] or "").lower()
        found.append(((hour % 12 + (12 if half == "p" else 0)) if half else hour, minute))
    return found


def ratios_in(text: str) -> list[tuple[int, int]]:
    """Both sides of each ratio: 3:4, 3 to 4."""
    return [(int(match[1]), int(match[2])) for match in RATIO.finditer(text)]


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
