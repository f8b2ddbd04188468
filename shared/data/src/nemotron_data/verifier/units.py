"""Units that convert into each other, and equations, which may not be values.

unit_of("km/h")                   ("length/time", Fraction(1000, 3600)); None for "apples"
in_one_unit("7 feet 6 inches")    "90 inches"
is_equation("2x - 9y = 4")        True: expected as such, or not an answer at all
is_equation("x = 4")              False: a value, and name_of("x = 4") is "x"
is_equation("2(3)+1 = 7")         False: a value, worked out
"""

import re
import unicodedata
from fractions import Fraction

UNITS: dict[str, dict[str, Fraction]] = {
    "time": {
        "s sec secs second seconds": Fraction(1), "min mins minute minutes": Fraction(60),
        "h hr hrs hour hours": Fraction(3600), "day days": Fraction(86400), "week weeks": Fraction(604800),
        "fortnight fortnights": Fraction(1209600),
        "ms millisecond milliseconds": Fraction(1, 1000),
    },
    "months": {"month months": Fraction(1), "yr yrs year years": Fraction(12),
               "decade decades": Fraction(120), "century centuries": Fraction(1200)},
    "length": {
        "mm millimeter millimeters millimetre millimetres": Fraction(1, 1000),
        "cm centimeter centimeters centimetre centimetres": Fraction(1, 100),
        "m meter meters metre metres": Fraction(1), "km kilometer kilometers kilometre kilometres": Fraction(1000),
        "in inch inches": Fraction(254, 10000), "ft foot feet": Fraction(3048, 10000),
        "yd yard yards": Fraction(9144, 10000), "mile miles": Fraction(1609344, 1000),
    },
    "mass": {
        "mg milligram milligrams": Fraction(1, 1000), "g gram grams": Fraction(1),
        "kg kilogram kilograms": Fraction(1000), "ton tons tonne tonnes": Fraction(10**6),
        "lb lbs pound pounds": Fraction(45359237, 100000), "oz ounce ounces": Fraction(45359237, 1600000),
        "stone stones": Fraction(14 * 45359237, 100000),
    },
    "volume": {"ml milliliter milliliters millilitre millilitres": Fraction(1, 1000),
               "l liter liters litre litres": Fraction(1),
               "gal gallon gallons": Fraction(3785411784, 10**9), "quart quarts": Fraction(946352946, 10**9),
               "pint pints": Fraction(473176473, 10**9)},
    "length^2": {"acre acres": Fraction(40468564224, 10**7), "hectare hectares": Fraction(10**4)},
    "data": {"byte bytes": Fraction(1), "kb": Fraction(10**3), "mb": Fraction(10**6), "gb": Fraction(10**9),
             "tb": Fraction(10**12)},
    "energy": {"joule joules": Fraction(1), "kj kilojoule kilojoules": Fraction(1000), "kwh": Fraction(3600000),
               "kcal": Fraction(4184), "cal calorie calories": Fraction(4184, 1000),
               "ev": Fraction(1602176634, 10**28)},
    "current": {"ampere amperes amp amps": Fraction(1), "milliamp milliamps": Fraction(1, 1000)},
    "resistance": {"ohm ohms \u03c9": Fraction(1)},
    "amount": {"mol mols mole moles": Fraction(1)},
    "power": {"watt watts": Fraction(1), "kw kilowatt kilowatts": Fraction(1000)},
    "force": {"newton newtons": Fraction(1), "kn kilonewton kilonewtons": Fraction(1000)},
    "tension": {"volt volts": Fraction(1), "kv kilovolt kilovolts": Fraction(1000)},
    "pressure": {"pa pascal pascals": Fraction(1), "kpa kilopascal kilopascals": Fraction(1000),
                 "atm": Fraction(101325), "bar": Fraction(10**5), "psi": Fraction(6894757293168, 10**9)},
    "frequency": {"hz hertz": Fraction(1), "khz kilohertz": Fraction(1000), "mhz megahertz": Fraction(10**6)},
    "celsius": {"celsius degreesc": Fraction(1)}, "fahrenheit": {"fahrenheit degreesf": Fraction(1)},
    "kelvin": {"kelvin kelvins": Fraction(1)},
    "money": {"cent cents \u00a2": Fraction(1, 100), "dollar dollars usd $": Fraction(1)},
    "euros": {"euro euros eur \u20ac": Fraction(1)}, "yen": {"yen jpy \u00a5": Fraction(1)},
    "rupees": {"rupee rupees inr \u20b9": Fraction(1)}, "sterling": {"sterling gbp \u00a3": Fraction(1)},
    "yuan": {"yuan rmb cny": Fraction(1)}, "francs": {"franc francs chf": Fraction(1)},
}  # fmt: skip
BY_NAME = {
    name: (dimension, factor) for dimension, names in UNITS.items() for group, factor in names.items()
    for name in group.split()
}  # fmt: skip


PREFIXES = {"p": -12, "n": -9, "\u00b5": -6, "\u03bc": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12}
LETTERS = {"J": "joule", "W": "watt", "N": "newton", "V": "volt", "A": "ampere", "K": "kelvin"}
"""Names of which the small letter means something else."""
NAMED_SYMBOLS = LETTERS | {
    "\u03a9": "ohm", "Hz": "hertz", "Pa": "pascal", "mol": "mole", "m": "meter", "s": "second", "g": "gram",
    "L": "liter", "B": "byte", "eV": "ev", "cal": "calorie",
}  # fmt: skip
SYMBOLS = {symbol: BY_NAME[name] for symbol, name in NAMED_SYMBOLS.items() if symbol != "K"} | {
    "F": ("capacitance", Fraction(1)), "b": ("data", Fraction(1, 8)), "Wh": ("energy", Fraction(3600)),
}  # fmt: skip
PREFIXED = {
    prefix + symbol: (dimension, factor * Fraction(10) ** power)
    for prefix, power in PREFIXES.items() for symbol, (dimension, factor) in SYMBOLS.items()
    if prefix + symbol not in ("pm", "mb", "kb")  # 5 pm is a time of day, 5 kb are kilobytes to most
}  # fmt: skip
"""Symbols whose case tells mW from MW, and MB from Mb."""
RATES = {"mph": "mile/hour", "kph": "km/hour", "kmh": "km/hour"}
COUNTED = ["time", "months", "length", "mass", "volume", "money"]
NAMES = "|".join(
    sorted((name for name in BY_NAME if BY_NAME[name][0] in COUNTED and name.isalpha()), key=len, reverse=True)
)
COMPOUND = re.compile(
    rf"(?<![\w.,/])(?P<more>\d{{1,9}}(?:\.\d{{1,9}})?)\s{{0,3}}-?\s?(?P<large>(?!in\b)(?:{NAMES})),?\s{{0,3}}(?:and\s)?"
    rf"\s?(?P<rest>\d{{1,9}}(?:\.\d{{1,9}})?)\s{{0,3}}(?P<small>{NAMES})(?![\w^/\u00b2\u00b3])",
    re.IGNORECASE,
)
POWER = re.compile(
    r"(?:(square|sq\.?|cubic)\s+)?([a-z]+|[\u03c9$\u00a2\u20ac\u00a3\u00a5\u20b9])(?:\^\{?([23])\}?|([\u00b2\u00b3]))?"
)


def unit_of(text: str) -> tuple[str, Fraction] | None:
    """What a unit measures, and how much of it; None for one that stands for itself. A rate has both its units."""
    if prefixed := PREFIXED.get(text.strip().replace("\u2126", "\u03a9")):
        return prefixed
    name = LETTERS.get(text.strip(), re.sub(r"^degrees\s+", "", text.strip().strip(".").lower()))
    over, sign, under = re.sub(r"\s*(?:/|\bper\b)\s*", "/", RATES.get(name, name)).partition("/")
    (top, bottom) = (_power(over), _power(under))
    if not sign or top is None or bottom is None:
        return top
    return f"{top[0]}/{bottom[0]}", top[1] / bottom[1]


def _power(text: str) -> tuple[str, Fraction] | None:
    """A unit that stands alone, or its square or cube: `cm^2`, `square metres`."""
    found = POWER.fullmatch(text.strip())
    if found is None or found[2] not in BY_NAME:
        return None
    word, name, figure, sign = found.groups()
    power = 3 if "3" in (figure or "") or sign == "\u00b3" or word == "cubic" else 2 if word or figure or sign else 1
    dimension, factor = BY_NAME[name]
    return (dimension if power == 1 else f"{dimension}^{power}"), factor**power


def in_one_unit(text: str) -> str:
    """A quantity in two units or more becomes one in the last, money in the first.

    "2 hours and 5 minutes" are "125 minutes".
    """
    before = None
    while text != before:
        before, text = text, COMPOUND.sub(_sum, text)
    return text


def _sum(found: re.Match[str]) -> str:
    one, other = unit_of(found["large"]), unit_of(found["small"])
    rest = Fraction(found["rest"])
    if one is None or other is None or one[0] != other[0] or rest * other[1] >= one[1]:
        return found[0]
    total = Fraction(found["more"]) * one[1] + rest * other[1]
    unit, factor = (found["large"], one[1]) if one[0] == "money" else (found["small"], other[1])
    return f"{total / factor} {unit}"


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
SPELLED_UNITS = re.compile(r"(?<=\d)\s*([A-Za-z]+)[\u00b2\u00b3]?(?:\s*/\s*([A-Za-z]+)[\u00b2\u00b3]?)?")
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
    if re.search(r"[A-Za-z]", right) and not _variables(SPELLED_UNITS.sub(_without_units, left)):  # 5 m + 3 m = 8 m
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
    """Whether a word or a comma is not part of a formula."""
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
