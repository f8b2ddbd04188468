"""Units that turn into each other, so that 42 minutes are not 42 hours, and 90 minutes are 1.5 hours.

unit_of("apples")      None: not one of these
unit_of("minutes")     ("time", Fraction(60))
unit_of("km/h")        ("length/time", Fraction(1000, 3600))
unit_of("cm^2")        ("length^2", Fraction(1, 10000))
in_one_unit("7 feet 6 inches")    "90 inches"
"""

import re
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
